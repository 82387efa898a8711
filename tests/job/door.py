"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cli.commands import COMMANDS
from clusterrun.cli.splitting import split as split
from clusterrun.domain.cpuset import CpuSet as CpuSet
from clusterrun.domain.facts import Fact as Fact
from clusterrun.domain.job import MappedGpu as MappedGpu
from clusterrun.domain.job import NumaBinding as NumaBinding
from clusterrun.domain.job import WorkerCount as WorkerCount
from clusterrun.domain.ranks import RankSet as RankSet
from clusterrun.domain.streams import Std as Std
from clusterrun.domain.streams import StreamChoice as StreamChoice
from clusterrun.errors import UsageError as UsageError
from clusterrun.from_python.keywords import options_of as options_of
from clusterrun.job import values as values
from clusterrun.job.declaring import Option as Option
from clusterrun.job.declaring import Row as Row
from clusterrun.job.declaring import flag as flag
from clusterrun.job.declaring import rows_of as rows_of
from clusterrun.job.declaring import spell as spell
from clusterrun.job.declaring import title_of as title_of
from clusterrun.job.file_kinds import FileKind as FileKind
from clusterrun.job.file_kinds import is_executable as is_executable
from clusterrun.job.file_kinds import kind_of as kind_of
from clusterrun.job.file_kinds import names_in as names_in
from clusterrun.job.gone import GONE as GONE
from clusterrun.job.mistakes import command as command
from clusterrun.job.options import NAMES as NAMES
from clusterrun.job.options import OPTIONS as OPTIONS
from clusterrun.job.options import SUBJECTS as SUBJECTS
from clusterrun.job.sources import CommandLine as CommandLine
from clusterrun.job.sources import JobFile as JobFile
from clusterrun.job.sources import Layer as Layer
from clusterrun.job.sources import from_variables as from_variables
from clusterrun.job.sources import unknown_variables as unknown_variables
from clusterrun.job.sources import value_of as value_of
from clusterrun.job.suggestions import closest as closest
from clusterrun.job.suggestions import did_you_mean as did_you_mean
from clusterrun.job.suggestions import did_you_mean_file as did_you_mean_file
from clusterrun.job.values import NodeRange as NodeRange
from clusterrun.job.values import number as number

OPTIONS_OF_COMMANDS = {
    f"{command.word}.{name}": row for command in COMMANDS for name, row in command.own_rows.items()
}
"""Those that only one command takes, by its word and their name."""
