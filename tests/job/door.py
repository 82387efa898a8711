"""All that the tests of this folder import of the inner modules of the product."""

from clusterrun.cli.commands import COMMANDS
from clusterrun.cli.help import GROUPS as GROUPS
from clusterrun.cli.help import help_text as help_text
from clusterrun.cli.splitting import split as split
from clusterrun.clients.python.call import options_of as options_of
from clusterrun.cpuset import CpuSet as CpuSet
from clusterrun.errors import ExitCode as ExitCode
from clusterrun.errors import UsageError as UsageError
from clusterrun.job import job_file
from clusterrun.job import values as values
from clusterrun.job.clusters.detection import CLUSTERS as CLUSTERS
from clusterrun.job.clusters.detection import Cluster as Cluster
from clusterrun.job.clusters.detection import detect as detect
from clusterrun.job.clusters.found import Found as Found
from clusterrun.job.clusters.found import Launch as Launch
from clusterrun.job.clusters.found import Variables as Variables
from clusterrun.job.clusters.slurm import Allocation as Allocation
from clusterrun.job.clusters.slurm import allocation_here as allocation_here
from clusterrun.job.clusters.slurm import port_candidates as port_candidates
from clusterrun.job.clusters.slurm import step as step
from clusterrun.job.declaring import Fact as Fact
from clusterrun.job.declaring import Option as Option
from clusterrun.job.declaring import Row as Row
from clusterrun.job.declaring import rows_of as rows_of
from clusterrun.job.declaring import spell as spell
from clusterrun.job.declaring import title_of as title_of
from clusterrun.job.file_kinds import FileKind as FileKind
from clusterrun.job.file_kinds import is_executable as is_executable
from clusterrun.job.file_kinds import kind_of as kind_of
from clusterrun.job.file_kinds import names_in as names_in
from clusterrun.job.gone import GONE as GONE
from clusterrun.job.hosts import expand_counts as expand_counts
from clusterrun.job.hosts import expand_hosts as expand_hosts
from clusterrun.job.hosts import read_hosts as read_hosts
from clusterrun.job.job import Job as Job
from clusterrun.job.job import ProgramKind as ProgramKind
from clusterrun.job.job import SchedulerJob as SchedulerJob
from clusterrun.job.job import WorkerProgram as WorkerProgram
from clusterrun.job.job_file import KEYS as KEYS
from clusterrun.job.job_file import read_entries as read_entries
from clusterrun.job.job_file import read_job_file as read_job_file
from clusterrun.job.mistakes import command as command
from clusterrun.job.nested_launches import NESTED_WARNING as NESTED_WARNING
from clusterrun.job.nested_launches import STEP_VARIABLE as STEP_VARIABLE
from clusterrun.job.nested_launches import WORKER_VARIABLES as WORKER_VARIABLES
from clusterrun.job.nested_launches import left_by_outer_launch as left_by_outer_launch
from clusterrun.job.options import NAMES as NAMES
from clusterrun.job.options import OPTIONS as OPTIONS
from clusterrun.job.options import SUBJECTS as SUBJECTS
from clusterrun.job.options import NumaBinding as NumaBinding
from clusterrun.job.program import check_script as check_script
from clusterrun.job.program import misplaced_options as misplaced_options
from clusterrun.job.resolve import Resolved as Resolved
from clusterrun.job.resolve import resolve as resolve
from clusterrun.job.scheduler import asctime_and_walltime as asctime_and_walltime
from clusterrun.job.scheduler import iso_time as iso_time
from clusterrun.job.scheduler import seconds_left as seconds_left
from clusterrun.job.sources import CommandLine as CommandLine
from clusterrun.job.sources import JobFile as JobFile
from clusterrun.job.sources import from_variables as from_variables
from clusterrun.job.sources import unknown_variables as unknown_variables
from clusterrun.job.sources import value_of as value_of
from clusterrun.job.suggestions import closest as closest
from clusterrun.job.suggestions import did_you_mean_file as did_you_mean_file
from clusterrun.job.this_process import CommandAnswer as CommandAnswer
from clusterrun.job.this_process import ThisProcess as ThisProcess
from clusterrun.job.this_process import addresses_of as addresses_of
from clusterrun.job.this_process import ask as ask
from clusterrun.job.values import MappedGpu as MappedGpu
from clusterrun.job.values import NodeRange as NodeRange
from clusterrun.job.values import RankSet as RankSet
from clusterrun.job.values import Std as Std
from clusterrun.job.values import StreamChoice as StreamChoice
from clusterrun.job.values import WorkerCount as WorkerCount
from clusterrun.job.values import number as number

scalar = job_file.Entry.text
sequence = job_file.Entry.texts

OPTIONS_OF_COMMANDS = {
    f"{command.word}.{name}": row for command in COMMANDS for name, row in command.own_rows.items()
}
"""Those that only one command takes, by its word and their name."""
