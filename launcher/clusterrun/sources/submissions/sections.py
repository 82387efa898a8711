"""The sections of a job file for schedulers: ``submit`` for all of them, ``slurm`` for one.

Their keys are the options of ``clusterrun submit``, and those of a job's shape: a job has other nodes
under a scheduler than here.
"""

from collections.abc import Mapping

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact, Row, by_any_name
from clusterrun.job.job_file import ALL_SCHEDULERS, SECTIONS, Entry, read_entries
from clusterrun.job.options import OPTIONS
from clusterrun.job.sources import Layer
from clusterrun.job.suggestions import did_you_mean
from clusterrun.sources.submissions.options import ROWS

SHAPE = {name: OPTIONS[name] for name in ("nnodes", "nproc_per_node")}
"""Options of a job that a section may set, too; there they count under its scheduler only."""

GROUPS = "groups"
"""The key of the section ``slurm`` for the groups of nodes of a heterogeneous job."""

OF_A_GROUP = (
    *("nnodes", "gpus_per_node", "cpus_per_gpu", "memory_per_gpu", "exclusive"),
    *("partition", "account", "qos", "constraint"),
)
"""Options that may differ from group to group; those that a group does not set are the section's."""

KEYS = {name: row for name, row in by_any_name({**ROWS, **SHAPE}).items() if row.option.in_file}

LISTS = ("modules", "mounts", "node_selector", "tolerations", "secrets", "claims")
"""Options with names separated by commas, which may be a list here."""

EXAMPLE = "time: 2:00:00"
"""A line of a section."""


def read_sections(config: Fact[str]) -> dict[str, Layer]:
    """Return what each section sets, by the section's name; {} without a job file.

    Raises:
        UsageError: a section has a key that no option has, or a value of another shape.

    """
    if not config.value:
        return {}
    return {
        key: _settings(entry, KEYS)
        for key, entry in read_entries(config).items()
        if key in SECTIONS and not entry.is_empty
    }


def read_groups(config: Fact[str]) -> tuple[Layer, ...]:
    """Return what each group of nodes sets that Slurm is asked for; () if there are none.

    Raises:
        UsageError: a group has a key that groups don't have, or a value of another shape.

    """
    section = read_entries(config).get("slurm") if config.value else None
    if section is None or section.is_empty:
        return ()
    keys = {name: row for name, row in KEYS.items() if row.name in OF_A_GROUP}
    entry = section.entries(EXAMPLE).get(f"{section.key}.{GROUPS}")
    groups = entry.items("nnodes: 2") if entry else ()
    return tuple(_settings(each, keys) for each in groups)


def shape_of(sections: Mapping[str, Layer], scheduler: str) -> Layer:
    """Return the options of a job that the sections set for ``scheduler``; its own section wins."""
    both = {**sections.get(ALL_SCHEDULERS, {}), **sections.get(scheduler, {})}
    return {name: both[name] for name in SHAPE if name in both}


def _settings(section: Entry, keys: Mapping[str, Row]) -> Layer:
    found: dict[str, tuple[Fact[str], ...]] = {}
    for dotted, entry in section.entries(EXAMPLE).items():
        key = dotted.removeprefix(f"{section.key}.")
        if key == GROUPS and section.key == "slurm":
            continue
        if key not in keys or (key == "to" and section.key != ALL_SCHEDULERS):
            raise UsageError(
                f"{entry.origin}: there is no such key",
                did_you_mean(key, keys)
                or "keys are the options of submit: type clusterrun submit --help",
            )
        if not entry.is_empty:
            found[keys[key].name] = _texts(keys[key], entry)
    return found


def _texts(row: Row, entry: Entry) -> tuple[Fact[str], ...]:
    may_be_list = row.value.repeated or row.name in LISTS
    texts = entry.texts() if may_be_list and entry.is_list else (entry.text(),)
    if row.name in LISTS:
        texts = (",".join(texts),)
    return tuple(Fact(text, entry.origin) for text in texts)
