"""What --help and --version answer."""

import click

from launcher.sources.option import Group, Option, flag
from launcher.sources.options import ALLOWED_CPUS, CAPTURE, JSON, MACHINE_ROOT, OPTIONS

ABOUT = """\
Start SCRIPT once for each GPU of this machine, with the variables that torchrun gives (RANK,
WORLD_SIZE, LOCAL_RANK and the rest), each on the CPUs near its GPU, and look after them all until
the job ends. clusterrun topo draws this machine instead: see clusterrun topo --help.

Each option is a variable too, CLUSTERRUN_NNODES or PET_NNODES for --nnodes, and a key of a job
file, nnodes. Flags beat CLUSTERRUN_ variables, these PET_ variables, these the job file.
"""

OF_TOPO = (JSON, MACHINE_ROOT, ALLOWED_CPUS, CAPTURE)
OF_WORKERS = tuple(row for row in OPTIONS if row.group is Group.WORKERS)

ABOUT_TOPO = """\
Draw this machine: packages, NUMA nodes, cores and GPUs, and which worker would be bound where. All
options of a launch count, those of how many workers and where among them; these are topo's own.
"""

ANSWERS = (("-h, --help", "Print this and end"), ("--version", "Print the version and end"))


def help_text() -> str:
    """Return the text of --help, as wide as the terminal but for very wide ones."""
    formatter = click.HelpFormatter()
    formatter.write_usage("clusterrun", "[OPTIONS] SCRIPT [ARGS]...")
    with formatter.indentation():
        formatter.write_paragraph()
        formatter.write_text(ABOUT)
    for group in Group:
        with formatter.section(group.value):
            formatter.write_dl(_rows(group))
    return formatter.getvalue().rstrip()


def topo_help_text() -> str:
    """Return the text of clusterrun topo --help."""
    formatter = click.HelpFormatter()
    formatter.write_usage("clusterrun", "topo [OPTIONS]")
    with formatter.indentation():
        formatter.write_paragraph()
        formatter.write_text(ABOUT_TOPO)
    for title, rows in (("What is drawn", OF_TOPO), (Group.WORKERS.value, OF_WORKERS)):
        with formatter.section(title):
            formatter.write_dl([(_spelling(row), _sentence(row)) for row in rows])
    return formatter.getvalue().rstrip()


def version_text() -> str:
    """Return the text of --version."""
    from importlib.metadata import version  # noqa: PLC0415 - only --version needs it

    return f"clusterrun {version('clusterrun')}"


def _rows(group: Group) -> list[tuple[str, str]]:
    rows = [(_spelling(row), _sentence(row)) for row in OPTIONS if row.group is group]
    return [*rows, *(ANSWERS if group is Group.LAUNCHER else ())]


def _spelling(option: Option[object]) -> str:
    short = (f"-{option.short}",) if option.short else ()
    return f"{', '.join((*short, *map(flag, option.names)))} {option.metavar}".rstrip()


def _sentence(option: Option[object]) -> str:
    default = option.otherwise or option.default_text
    return option.help if default == "false" else f"{option.help} [default: {default}]"
