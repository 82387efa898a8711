"""The table of options: flags, variables, keys of a job file, defaults and help come from it."""

from msgspec.structs import replace

from clusterrun.sources.options.option import Option
from clusterrun.sources.options.rows import (
    failing,
    joining,
    launcher,
    logs,
    meeting,
    output,
    placing,
    program,
    starting,
    torchrun,
    workers,
)
from clusterrun.sources.options.values.numbers import fewest_nodes

GROUPS = (
    program,
    starting,
    workers,
    placing,
    meeting,
    joining,
    failing,
    output,
    logs,
    torchrun,
    launcher,
)

OPTIONS: tuple[Option[object], ...] = tuple(
    row for group in GROUPS for row in vars(group).values() if isinstance(row, Option)
)
"""All rows, in the order of --help: that of the modules, and of the rows in each."""

FEWEST_NODES = replace(workers.NNODES, parse=fewest_nodes)
"""MIN of ``--nnodes MIN:MAX``; no row of the table, which has ``NNODES`` for both."""
