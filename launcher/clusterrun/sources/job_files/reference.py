"""The reference of job files: every key with its default, made from the table."""

from textwrap import wrap

from clusterrun.sources.options.option import Group, Option
from clusterrun.sources.options.rows.program import MODULE
from clusterrun.sources.options.table import OPTIONS

HEAD = """\
# Every key of a job file with its default; clusterrun --config FILE reads one.
#
# Flags beat variables (CLUSTERRUN_NNODES, then PET_NNODES), variables beat the file, the file beats
# the defaults. Values are the text that they look like. A key without a value counts as not given.


# The program; one on the command line replaces all three keys.

# A Python script.
script:

# Or a Python module, run as by python -m.
module:

# The arguments of either.
args: []
"""


def render_reference() -> str:
    """Return the text of configs/reference.yaml."""
    return HEAD + "".join(_section(group) for group in Group)


def _section(group: Group) -> str:
    # The module has its key above: there it holds a name, where the flag is a yes or no.
    rows = [row for row in OPTIONS if row.group is group and row.in_file and row is not MODULE]
    return f"\n\n# {group.value}\n" + "".join(f"\n{_entry(row)}\n" for row in rows) if rows else ""


def _entry(option: Option[object]) -> str:
    default = f" Default: {option.default_words}." if option.default_words else ""
    comment = wrap(f"{option.help}.{default}", width=98, break_on_hyphens=False)
    return "\n".join([*(f"# {line}" for line in comment), _line(option)])


def _line(option: Option[object]) -> str:
    return f"{option.name}: {option.default_text}".rstrip()
