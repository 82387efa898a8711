"""The table of options: flags, variables, keys of a job file, defaults and help come from it."""

from collections.abc import Mapping, Sequence
from importlib import import_module

from msgspec.structs import replace

from clusterrun.sources.options.option import Group, Option
from clusterrun.sources.options.rows.workers import NNODES
from clusterrun.sources.options.values.numbers import fewest_nodes


def _rows_of(group: Group) -> list[Option[object]]:
    module = import_module(f"clusterrun.sources.options.rows.{group.topic}")
    return [row for row in vars(module).values() if isinstance(row, Option)]


BY_GROUP: Mapping[Group, Sequence[Option[object]]] = {group: _rows_of(group) for group in Group}
"""The rows of each group, in the order of its module."""

OPTIONS = tuple(row for rows in BY_GROUP.values() for row in rows)
"""All rows, in the order of --help."""

FEWEST_NODES = replace(NNODES, parse=fewest_nodes)
"""MIN of ``--nnodes MIN:MAX``; no row of the table, which has ``NNODES`` for both."""
