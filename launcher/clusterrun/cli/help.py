"""What --help and --version answer."""

from collections.abc import Iterable

import click

from clusterrun.errors import UsageError
from clusterrun.sources.options.option import Group, Kind, Option, flag
from clusterrun.sources.options.rows.failing import MAX_RESTARTS
from clusterrun.sources.options.rows.launcher import (
    ALLOWED_CPUS,
    CAPTURE,
    CONFIG,
    DRY_RUN,
    JSON,
    MACHINE_ROOT,
)
from clusterrun.sources.options.rows.logs import LOG_DIR
from clusterrun.sources.options.rows.meeting import MASTER_ADDR
from clusterrun.sources.options.rows.output import VERBOSE
from clusterrun.sources.options.rows.program import MODULE
from clusterrun.sources.options.rows.workers import NNODES, NPROC_PER_NODE
from clusterrun.sources.options.suggestions import closest
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.programs.file_kinds import FileKind, kind_of

ALL = "all"
"""The topic of everything."""

OVERVIEW = "overview"
"""What --help shows when it is asked for nothing more."""

TOPICS = (*(group.topic for group in Group), ALL, OVERVIEW)

ABOUT = """\
Start SCRIPT once for each GPU of this machine, with the variables that torchrun gives, each on the
CPUs near its GPU, and look after them all. clusterrun topo draws the machine instead.
"""

ABOUT_TOPO = """\
Draw this machine: packages, NUMA nodes, cores and GPUs, and which worker would be bound where. All
options of a launch count, those of how many workers and where among them; these are topo's own.
"""

OF_TOPO = (JSON, MACHINE_ROOT, ALLOWED_CPUS, CAPTURE)

ELSEWHERE = """\
Each option is a variable too, CLUSTERRUN_NNODES or PET_NNODES for --nnodes, and a key of a job
file, nnodes. Flags beat CLUSTERRUN_ variables, these PET_ variables, these the job file.
"""

EVERYDAY = (
    (NPROC_PER_NODE, "Workers on each node, otherwise one per GPU"),
    (NNODES, "Nodes; the same command on each"),
    (MASTER_ADDR, "The node where all nodes meet"),
    (MODULE, "SCRIPT is a Python module"),
    (MAX_RESTARTS, "How often to start all again after a failure"),
    (LOG_DIR, "Write what workers print to files, too"),
    (CONFIG, "A job file in YAML"),
    (DRY_RUN, "Print the plan, each value with its origin"),
    (VERBOSE, "Say more of what is done and why"),
)
"""What most jobs need, in words that fit one line."""

ANSWERS = (
    ("-h, --help [GROUP|all]", "Print this, one group of options, or all, and end"),
    ("--version", "Print the version and end"),
    ("--print-completion SHELL", "Print what completes options in bash, zsh or fish"),
)

NARROWEST_TEXT = 24
"""Columns of the first column at most: what is longer has a line of its own."""


def help_text(topic: str = OVERVIEW) -> str:
    """Return the text of --help, as wide as the terminal but for very wide ones.

    Args:
        topic: one of ``TOPICS``; the overview is meant by the name of a script, too.

    Raises:
        UsageError: it is neither.

    """
    if topic not in TOPICS and not _is_script(topic):
        raise UsageError(
            f"there is no help on {topic!r}",
            _nearest_topic(topic) or f"give one of {', '.join(TOPICS)}",
        )
    groups = [group for group in Group if topic in {group.topic, ALL}]
    return _sections(groups) if groups else _overview()


def topo_help_text() -> str:
    """Return the text of clusterrun topo --help."""
    formatter = click.HelpFormatter()
    formatter.write_usage("clusterrun", "topo [OPTIONS]")
    with formatter.indentation():
        formatter.write_paragraph()
        formatter.write_text(ABOUT_TOPO)
    with formatter.section("What is drawn"):
        formatter.write_dl([(_spelling(row), _sentence(row)) for row in OF_TOPO])
    _write_sections(formatter, (Group.WORKERS, Group.PLACING))
    return formatter.getvalue().rstrip()


def version_text() -> str:
    """Return the text of --version: ours, and of what the workers run on unless --python says more."""
    import sys
    from importlib import metadata

    versions = [f"clusterrun {metadata.version('clusterrun')}", f"Python {sys.version.split()[0]}"]
    try:
        versions.append(f"torch {metadata.version('torch')}")
    except metadata.PackageNotFoundError:
        versions.append("no torch")
    return ", ".join(versions)


def _is_script(word: str) -> bool:
    return "." in word or "/" in word or kind_of(word) is not FileKind.NOTHING


def _nearest_topic(word: str) -> str:
    nearest = closest(word, TOPICS)
    return f"did you mean --help {nearest}?" if nearest else ""


def _overview() -> str:
    formatter = click.HelpFormatter()
    formatter.write_usage("clusterrun", "[OPTIONS] SCRIPT [ARGS]...")
    with formatter.indentation():
        formatter.write_text(ABOUT)
    formatter.write_paragraph()
    rows = [(_spelling(option), sentence) for option, sentence in EVERYDAY]
    formatter.write_dl([*rows, *ANSWERS], col_max=NARROWEST_TEXT)
    formatter.write_paragraph()
    formatter.write_text(f"Groups: {', '.join(group.topic for group in Group)}.")
    return formatter.getvalue().rstrip()


def _sections(groups: Iterable[Group]) -> str:
    formatter = click.HelpFormatter()
    _write_sections(formatter, groups)
    return formatter.getvalue().rstrip()


def _write_sections(formatter: click.HelpFormatter, groups: Iterable[Group]) -> None:
    for group in groups:
        with formatter.section(f"{group.value} (--help {group.topic})"):
            formatter.write_dl(_rows(group), col_max=NARROWEST_TEXT)
            if group is Group.LAUNCHER:
                formatter.write_paragraph()
                formatter.write_text(ELSEWHERE)


def _rows(group: Group) -> list[tuple[str, str]]:
    rows = [(_spelling(row), _sentence(row)) for row in OPTIONS if row.group is group]
    return [*rows, *(ANSWERS if group is Group.LAUNCHER else ())]


def _spelling(option: Option[object]) -> str:
    short = (f"-{option.short}",) if option.short else ()
    names = ", ".join((*short, *map(flag, option.names)))
    # The brackets of a value that may be left out begin right behind the name.
    return f"{names}{'' if option.kind is Kind.OPTIONAL else ' '}{option.metavar}".rstrip()


def _sentence(option: Option[object]) -> str:
    default = option.default_words or option.default_text
    return option.help if default == "false" else f"{option.help} [default: {default}]"
