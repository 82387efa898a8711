"""The sections of a job file for schedulers: ``submit`` for all of them, ``slurm`` for one.

Their keys are what may be asked of a scheduler, and a job's shape: a job has other nodes under a
scheduler than here.
"""

import re
from collections.abc import Mapping

import yaml

from clusterrun.clients.submit.instead import instead_of_option, instead_of_sbatchs
from clusterrun.clients.submit.request import ROWS
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact, Row, by_any_name
from clusterrun.job.job_file import ALL_SCHEDULERS, SECTIONS, Entry, read_entries
from clusterrun.job.options import OPTIONS
from clusterrun.job.sources import Layer
from clusterrun.job.suggestions import did_you_mean

SHAPE = {name: OPTIONS[name] for name in ("nnodes", "nproc_per_node")}
"""Options of a job that a section may set, too; there they count under its scheduler only."""

KEYS = {name: row for name, row in by_any_name({**ROWS, **SHAPE}).items() if row.option.in_file}

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
        key: _settings(entry)
        for key, entry in read_entries(config).items()
        if key in SECTIONS and not entry.is_empty
    }


def shape_of(sections: Mapping[str, Layer], scheduler: str) -> Layer:
    """Return the options of a job that the sections set for ``scheduler``; its own section wins."""
    both = {**sections.get(ALL_SCHEDULERS, {}), **sections.get(scheduler, {})}
    return {name: both[name] for name in SHAPE if name in both}


def _settings(section: Entry) -> Layer:
    found: dict[str, tuple[Fact[str], ...]] = {}
    for dotted, entry in section.entries(EXAMPLE).items():
        key = dotted.removeprefix(f"{section.key}.")
        if key not in KEYS or (key == "to" and section.key != ALL_SCHEDULERS):
            raise _no_such_key(section.key, key, entry)
        if not entry.is_empty:
            found[KEYS[key].name] = _texts(KEYS[key], entry)
    return found


def _no_such_key(section: str, key: str, entry: Entry) -> UsageError:
    texts = entry.texts() if entry.is_list and key == "modules" else ()
    value = entry.value.value if isinstance(entry.value, yaml.ScalarNode) else ",".join(texts)
    scheduler = section if section != ALL_SCHEDULERS else ""
    if instead := instead_of_option(key, value or "VALUE", scheduler):
        return UsageError(f"{entry.origin}: there is no such key any more", _as_key(instead))
    name = key.replace("_", "-")
    if key.replace("-", "_") not in KEYS and (hint := instead_of_sbatchs(name, value, scheduler)):
        return UsageError(
            f"{entry.origin}: there is no such key; sbatch has such an option", _as_key(hint)
        )
    return UsageError(
        f"{entry.origin}: there is no such key",
        did_you_mean(key, KEYS) or "keys are the options of submit: type clusterrun submit --help",
    )


def _as_key(hint: str) -> str:
    """Return a hint to an option, with how a file has an option that it names first."""
    found = re.match(r"type --([\w-]+)", hint)
    name = found[1].replace("-", "_") if found else ""
    if found is None or name not in KEYS:
        return hint
    return f"{hint}\nin a job file, --{found[1]} is the key {name}"


def _texts(row: Row, entry: Entry) -> tuple[Fact[str], ...]:
    if row.name == "directive" and isinstance(entry.value, yaml.MappingNode):
        # What a pod's spec has, as YAML in YAML; a batch script, whose lines are single, refuses it.
        return (Fact(f"---\n{yaml.serialize(entry.value)}", entry.origin),)
    if entry.is_list and (row.value.repeated or row.name == "mounts"):
        texts = entry.texts() if row.value.repeated else (",".join(entry.texts()),)
    else:
        texts = (entry.text(),)
    return tuple(Fact(text, entry.origin) for text in texts)
