"""The options as the rooms that are not rebuilt yet take them; this file goes with these rooms."""

from clusterrun.job.options import OPTIONS as DECLARED
from clusterrun.sources.options.option import as_old_row

_ADAPTED = {
    "nnodes": lambda nodes: nodes.most,
    "env": lambda setting: dict([setting] if setting else []),
    "rdzv_conf": dict,
}

OLD = {
    name: as_old_row(row, _ADAPTED.get(name, lambda value: value)) for name, row in DECLARED.items()
}
