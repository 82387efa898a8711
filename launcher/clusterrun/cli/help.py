"""``clusterrun --help``: the most common options, one group of options, all options, or a command."""

from collections.abc import Iterable

import click
from msgspec import Struct

from clusterrun.cli.commands import COMMANDS_BY_WORD, Command
from clusterrun.cli.splitting import OVERVIEW, PRINTING
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Row, flag, rows_of, title_of
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.options import NAMES, OPTIONS, SUBJECTS, Launcher
from clusterrun.job.suggestions import closest

ALL = "all"

COMMANDS = "commands"
"""The topic that lists the commands."""

GROUPS = {subject.__name__.lower(): subject for subject in SUBJECTS}
"""The groups of options by topic, as in ``--help program``."""

OLD_GROUPS = {
    "failing": "failures",
    "joining": "join",
    "losing": "elasticity",
    "meeting": "rendezvous",
    "reaching": "ssh",
}
"""Topics of 0.1, which are accepted until 0.3."""

TOPICS = (*GROUPS, COMMANDS, ALL, OVERVIEW, *COMMANDS_BY_WORD)

ABOUT = """\
Start SCRIPT once for each GPU of this machine, with torchrun's environment variables, each bound
to the CPUs near its GPU, and supervise all of them.
"""

ELSEWHERE = """\
Each option can also be set by an environment variable, CLUSTERRUN_NNODES or PET_NNODES for
--nnodes, or a job file key, nnodes. The first one set wins: flag, CLUSTERRUN_ variable, PET_ variable, job file.
"""

COMMON_OPTIONS = (
    ("nproc_per_node", "Workers on each node; by default one per GPU"),
    ("nnodes", "Number of nodes; run the same command on each"),
    ("master_addr", "The address of node 0, where all nodes rendezvous"),
    ("module", "SCRIPT is a Python module"),
    ("max_restarts", "How many times to restart all workers after a failure"),
    ("log_dir", "Write what workers print to files, too"),
    ("config", "A job file in YAML"),
    ("dry_run", "Print the plan, each value with its origin"),
    ("verbose", "Print more of what is done and why"),
)
"""The most common options, each with a text that fits on one line."""

MIN_SIMILARITY = 0.65
"""Less similar topics are not suggested: "joining" for "nothing"."""

FIRST_COLUMN_WIDTH = 24
"""Characters. Longer entries get their own line."""


def help_text(topic: str = OVERVIEW) -> str:
    """Return the text of --help, wrapped to the terminal's width up to a limit.

    Raises:
        UsageError: ``topic`` is neither one of ``TOPICS`` nor the name of a script.

    """
    topic = OLD_GROUPS.get(topic, topic)
    if topic not in TOPICS and not _is_script(topic):
        if row := NAMES.get(topic.replace("-", "_")):
            group = row.subject.__name__.lower()
            raise UsageError(
                f"{topic!r} has no help page of its own",
                f"use --help {group}, which describes {row.flag}",
            )
        nearest = closest(topic, TOPICS, MIN_SIMILARITY)
        raise UsageError(
            f"there is no help on {topic!r}",
            (nearest and f"did you mean --help {nearest}?") or f"give one of {', '.join(TOPICS)}",
        )
    formatter = click.HelpFormatter()
    if topic == COMMANDS:
        _write_commands(formatter)
    elif topic in COMMANDS_BY_WORD:
        _write_command(formatter, COMMANDS_BY_WORD[topic])
    elif groups := [group for name, group in GROUPS.items() if topic in {name, ALL}]:
        _write_sections(formatter, groups)
    else:
        _write_overview(formatter)
    return formatter.getvalue().rstrip()


def _is_script(word: str) -> bool:
    return "." in word or "/" in word or kind_of(word) is not FileKind.NOTHING


def _write_overview(formatter: click.HelpFormatter) -> None:
    formatter.write_usage("clusterrun", "[OPTIONS] SCRIPT [ARGS]...")
    with formatter.indentation():
        formatter.write_text(ABOUT)
    formatter.write_paragraph()
    rows = [(_spelling(OPTIONS[name]), sentence) for name, sentence in COMMON_OPTIONS]
    formatter.write_dl([*rows, *_command_rows()], col_max=FIRST_COLUMN_WIDTH)
    formatter.write_paragraph()
    formatter.write_text(f"Commands (--help {COMMANDS}): {', '.join(COMMANDS_BY_WORD)}.")
    formatter.write_text(f"Groups: {', '.join(GROUPS)}.")


def _write_commands(formatter: click.HelpFormatter) -> None:
    rows = [
        (f"clusterrun {command.word}", command.summary) for command in COMMANDS_BY_WORD.values()
    ]
    with formatter.section("Commands; clusterrun COMMAND --help has more"):
        formatter.write_dl(rows)


def _write_command(formatter: click.HelpFormatter, command: Command) -> None:
    words = "SCRIPT [ARGS]..." if command.takes_script else command.words
    formatter.write_usage("clusterrun", f"{command.word} [OPTIONS] {words}".rstrip())
    with formatter.indentation():
        formatter.write_paragraph()
        formatter.write_text(command.about or command.summary)
    if own := [*command.own_rows.values(), *(OPTIONS[name] for name in command.shown)]:
        with formatter.section("Its own options"):
            rows = [(_spelling(row), _sentence(row)) for row in own]
            formatter.write_dl(rows, col_max=FIRST_COLUMN_WIDTH)
    _write_sections(formatter, command.groups)


def _command_rows() -> list[tuple[str, str]]:
    return [(_spelling(row), row.option.help) for row in PRINTING.values()]


def _write_sections(formatter: click.HelpFormatter, groups: Iterable[type[Struct]]) -> None:
    for group in groups:
        with formatter.section(f"{title_of(group)} (--help {group.__name__.lower()})"):
            rows = [(_spelling(row), _sentence(row)) for row in rows_of(group).values()]
            if group is Launcher:
                rows += _command_rows()
            formatter.write_dl(rows, col_max=FIRST_COLUMN_WIDTH)
            if group is Launcher:
                formatter.write_paragraph()
                formatter.write_text(ELSEWHERE)


def _spelling(row: Row) -> str:
    short = (f"-{row.option.short}",) if row.option.short else ()
    names = ", ".join((*short, *map(flag, row.names)))
    # The metavar of an optional value includes "[=": no space before it.
    return f"{names}{'' if row.needs_equals else ' '}{row.metavar}".rstrip()


def _sentence(row: Row) -> str:
    default = row.option.default or row.default_text
    return row.option.help if default == "false" else f"{row.option.help} [default: {default}]"
