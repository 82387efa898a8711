"""The table of options: flags, variables, keys of a job file, defaults and help come from it."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from clusterrun.sources.options.option import Group, Option
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

_MODULES = {
    Group.PROGRAM: program,
    Group.STARTING: starting,
    Group.WORKERS: workers,
    Group.PLACING: placing,
    Group.MEETING: meeting,
    Group.JOINING: joining,
    Group.FAILING: failing,
    Group.OUTPUT: output,
    Group.LOGS: logs,
    Group.TORCHRUN: torchrun,
    Group.LAUNCHER: launcher,
}

BY_GROUP: Mapping[Group, Sequence[Option[object]]] = {
    group: [row for row in vars(module).values() if isinstance(row, Option)]
    for group, module in _MODULES.items()
}
"""The rows of each group, in the order of its module."""

OPTIONS = tuple(row for rows in BY_GROUP.values() for row in rows)
"""All rows, in the order of --help."""

FEWEST_NODES = replace(workers.NNODES, parse=fewest_nodes)
"""MIN of ``--nnodes MIN:MAX``; no row of the table, which has ``NNODES`` for both."""
