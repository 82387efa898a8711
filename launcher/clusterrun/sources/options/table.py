"""The table of options: flags, variables, keys of a job file, defaults and help come from it."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from clusterrun.job.declaring import rows_of
from clusterrun.job.options import SUBJECTS
from clusterrun.job.values import NodeRange
from clusterrun.sources.options.old_rows import OLD
from clusterrun.sources.options.option import Group, Option

BY_GROUP: Mapping[Group, Sequence[Option[object]]] = {
    group: [OLD[name] for name in rows_of(subject)]
    for group, subject in zip(Group, SUBJECTS, strict=True)
}
"""The rows of each group, in the order of the fields of its subject."""

OPTIONS = tuple(row for rows in BY_GROUP.values() for row in rows)
"""All rows, in the order of --help."""

FEWEST_NODES = replace(OLD["nnodes"], parse=lambda text: NodeRange.parse(text).fewest)
"""MIN of ``--nnodes MIN:MAX``; no row of the table, which has ``nnodes`` for both."""
