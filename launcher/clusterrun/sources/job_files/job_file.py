"""A job described in a YAML file, under the options' own names."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.gone import GONE
from clusterrun.job.options import NAMES
from clusterrun.job.sources import JobFile, Layer
from clusterrun.job.suggestions import did_you_mean
from clusterrun.sources.job_files.section_names import SECTIONS
from clusterrun.sources.job_files.yaml_nodes import (
    Entry,
    is_empty,
    mapping,
    read_entries,
    scalar,
    sequence,
)

PROGRAM_KEYS = ("script", "module", "args")

KEYS_ARE_OPTIONS = "each option is a key: type clusterrun --help all"

ACCELERATE_KEYS = (
    *("compute_environment", "distributed_type"),
    *("machine_rank", "num_machines", "num_processes"),
)
"""Keys of the file that ``accelerate config`` writes; it begins with the first two."""

PLAIN_KEYS = {
    name: row.name
    for name, row in NAMES.items()
    if row.option.in_file and row.name not in {"env", "module"}
}
"""Keys that hold one value, with the name of their option."""

KEYS = (*PROGRAM_KEYS, "env", *PLAIN_KEYS, *SECTIONS)


def read_job_file(config: Fact[str]) -> JobFile:
    """Return the settings and the program of the file at the path ``config``.

    A key without a value is not set.

    Raises:
        UsageError: the file cannot be read, is not YAML, or has an unknown key or a value of the
            wrong shape; the message begins with file, line and key.

    """
    entries = read_entries(config)
    for entry in entries.values():
        _expect_known(entry)
    given = {key: entry for key, entry in entries.items() if not is_empty(entry)}
    settings = {**_plain(given), **_env(config.value, given), **_module(given)}
    return JobFile(settings, _words(given))


def _expect_known(entry: Entry) -> None:
    if entry.key == "config":
        raise UsageError(f"{entry.origin}: a job file cannot name another", "remove the line")
    if entry.key in ACCELERATE_KEYS:
        raise UsageError(
            f"{entry.origin}: there is no such key; accelerate's own files have it",
            f"type its values as options, or write a job file; {KEYS_ARE_OPTIONS}",
        )
    if entry.key in GONE:
        raise UsageError(f"{entry.origin}: there is no such key any more", GONE[entry.key])
    if entry.key not in KEYS:
        raise UsageError(
            f"{entry.origin}: there is no such key",
            did_you_mean(entry.key, KEYS) or KEYS_ARE_OPTIONS,
        )


def _plain(entries: Mapping[str, Entry]) -> Layer:
    return {
        name: (Fact(scalar(entries[key]), entries[key].origin),)
        for key, name in PLAIN_KEYS.items()
        if key in entries
    }


def _env(path: str, entries: Mapping[str, Entry]) -> Layer:
    if "env" not in entries:
        return {}
    variables = mapping(path, entries["env"]).values()
    return {"env": tuple(_setting(variable) for variable in variables)}


def _setting(variable: Entry) -> Fact[str]:
    name = variable.key.removeprefix(f"{'env'}.")
    if "=" in name:
        raise UsageError(f"{variable.origin}: a name with = in it", "write NAME: VALUE")
    return Fact(f"{name}={scalar(variable)}", variable.origin)


def _module(entries: Mapping[str, Entry]) -> Layer:
    # The key holds the module's name; the flag only marks SCRIPT as a module.
    if "module" not in entries:
        return {}
    return {"module": (Fact("true", entries["module"].origin),)}


def _words(entries: Mapping[str, Entry]) -> Fact[tuple[str, ...]]:
    named = [entries[key] for key in ("script", "module") if key in entries]
    if not named:
        return Fact((), "default")
    if len(named) == 2:
        raise UsageError(
            f"{named[0].origin} and {named[1].origin}: two programs", "remove one of the two lines"
        )
    args = sequence(entries["args"]) if "args" in entries else ()
    return Fact((scalar(named[0]), *args), named[0].origin)
