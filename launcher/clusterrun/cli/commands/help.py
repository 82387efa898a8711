"""``clusterrun --help``: the options that most jobs need, one group of options, or all."""

from collections.abc import Iterable, Mapping

import click

from clusterrun.cli.commands.table import FLAG_OPTIONS, HELP, WORDS, Command
from clusterrun.cli.printing import print_text
from clusterrun.errors import UsageError
from clusterrun.job.declaring import flag
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.suggestions import closest
from clusterrun.sources.options.option import Group, Kind, Option
from clusterrun.sources.options.rows.failing import MAX_RESTARTS
from clusterrun.sources.options.rows.files import LOG_DIR
from clusterrun.sources.options.rows.launcher import CONFIG, DRY_RUN
from clusterrun.sources.options.rows.meeting import MASTER_ADDR
from clusterrun.sources.options.rows.output import VERBOSE
from clusterrun.sources.options.rows.program import MODULE
from clusterrun.sources.options.rows.workers import NNODES, NPROC_PER_NODE
from clusterrun.sources.options.table import BY_GROUP
from clusterrun.sources.settings import CommandLine

ALL = "all"

OVERVIEW = "overview"
"""What --help shows without a topic."""

COMMANDS = "commands"
"""The topic that lists the commands that are words."""

TOPICS = (*(group.topic for group in Group), COMMANDS, ALL, OVERVIEW, *WORDS)

ABOUT = """\
Start SCRIPT once for each GPU of this machine, with the variables that torchrun sets, each on the
CPUs near its GPU, and look after all of them.
"""

ELSEWHERE = """\
Each option is also a variable, CLUSTERRUN_NNODES or PET_NNODES for --nnodes, and a key of a job
file, nnodes. The first one set counts: flag, CLUSTERRUN_ variable, PET_ variable, job file.
"""

MOST_USED = (
    (NPROC_PER_NODE, "Workers on each node; by default one per GPU"),
    (NNODES, "Nodes; type the same command on each"),
    (MASTER_ADDR, "The node where all nodes meet"),
    (MODULE, "SCRIPT is a Python module"),
    (MAX_RESTARTS, "How often to restart all workers after a failure"),
    (LOG_DIR, "Write what workers print to files, too"),
    (CONFIG, "A job file in YAML"),
    (DRY_RUN, "Print the plan, each value with its origin"),
    (VERBOSE, "Print more of what is done and why"),
)
"""The options that most jobs need, in words that fit one line."""

WIDEST_FIRST_COLUMN = 24
"""What is longer has a line of its own."""


def execute(line: CommandLine, _environ: Mapping[str, str], _called: str) -> int:
    return print_text(help_text(str(line.flags[HELP.name]) or OVERVIEW))


def help_text(topic: str = OVERVIEW) -> str:
    """Return the text of --help, as wide as the terminal up to a limit.

    Raises:
        UsageError: ``topic`` is neither one of ``TOPICS`` nor the name of a script.

    """
    if topic == COMMANDS:
        return _commands()
    if topic in WORDS:
        return _command_help(WORDS[topic])
    if topic not in TOPICS and not _is_script(topic):
        nearest = closest(topic, TOPICS)
        raise UsageError(
            f"there is no help on {topic!r}",
            (nearest and f"did you mean --help {nearest}?") or f"give one of {', '.join(TOPICS)}",
        )
    groups = [group for group in Group if topic in {group.topic, ALL}]
    return _sections(groups) if groups else _overview()


def _is_script(word: str) -> bool:
    return "." in word or "/" in word or kind_of(word) is not FileKind.NOTHING


def _overview() -> str:
    formatter = click.HelpFormatter()
    formatter.write_usage("clusterrun", "[OPTIONS] SCRIPT [ARGS]...")
    with formatter.indentation():
        formatter.write_text(ABOUT)
    formatter.write_paragraph()
    rows = [(_spelling(option), sentence) for option, sentence in MOST_USED]
    formatter.write_dl([*rows, *_command_rows()], col_max=WIDEST_FIRST_COLUMN)
    formatter.write_paragraph()
    formatter.write_text(f"Commands (--help {COMMANDS}): {', '.join(WORDS)}.")
    formatter.write_text(f"Groups: {', '.join(group.topic for group in Group)}.")
    return formatter.getvalue().rstrip()


def _commands() -> str:
    formatter = click.HelpFormatter()
    rows = [(f"clusterrun {command.typed}", command.summary) for command in WORDS.values()]
    with formatter.section("Commands; clusterrun COMMAND --help has more"):
        formatter.write_dl(rows)
    return formatter.getvalue().rstrip()


def _command_help(command: Command) -> str:
    formatter = click.HelpFormatter()
    formatter.write_usage("clusterrun", f"{command.typed} {_words_after(command)}")
    with formatter.indentation():
        formatter.write_paragraph()
        formatter.write_text(command.about or command.summary)
    if own := command.its_own_options:
        with formatter.section("Its own options"):
            rows = [(_spelling(row), _sentence(row)) for row in own]
            formatter.write_dl(rows, col_max=WIDEST_FIRST_COLUMN)
    _write_sections(formatter, command.groups)
    return formatter.getvalue().rstrip()


def _words_after(command: Command) -> str:
    if command.takes_script:
        return "[OPTIONS] SCRIPT [ARGS]..."
    options = ["[OPTIONS]"] if command.options or not command.word else []
    return " ".join([*options, *filter(None, [command.word])])


def _command_rows() -> list[tuple[str, str]]:
    return [(_spelling(option), option.help) for option in FLAG_OPTIONS]


def _sections(groups: Iterable[Group]) -> str:
    formatter = click.HelpFormatter()
    _write_sections(formatter, groups)
    return formatter.getvalue().rstrip()


def _write_sections(formatter: click.HelpFormatter, groups: Iterable[Group]) -> None:
    for group in groups:
        with formatter.section(f"{group.value} (--help {group.topic})"):
            formatter.write_dl(_rows(group), col_max=WIDEST_FIRST_COLUMN)
            if group is Group.LAUNCHER:
                formatter.write_paragraph()
                formatter.write_text(ELSEWHERE)


def _rows(group: Group) -> list[tuple[str, str]]:
    rows = [(_spelling(row), _sentence(row)) for row in BY_GROUP[group]]
    return [*rows, *(_command_rows() if group is Group.LAUNCHER else ())]


def _spelling(option: Option[object]) -> str:
    short = (f"-{option.short}",) if option.short else ()
    names = ", ".join((*short, *map(flag, option.names)))
    # The brackets of a value that may be left out touch the name.
    return f"{names}{'' if option.kind is Kind.OPTIONAL else ' '}{option.metavar}".rstrip()


def _sentence(option: Option[object]) -> str:
    default = option.default_words or option.default_text
    return option.help if default == "false" else f"{option.help} [default: {default}]"
