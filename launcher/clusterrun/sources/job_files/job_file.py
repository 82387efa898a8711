"""A job described in a YAML file, under the options' own names."""

from collections.abc import Mapping

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.gone import GONE
from clusterrun.job.sources import Layer
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
from clusterrun.sources.options.rows.launcher import CONFIG
from clusterrun.sources.options.rows.program import ENV, MODULE
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.settings import JobFile

PROGRAM_KEYS = ("script", "module", "args")

KEYS_ARE_OPTIONS = "each option is a key: type clusterrun --help all"

ACCELERATE_KEYS = (
    *("compute_environment", "distributed_type"),
    *("machine_rank", "num_machines", "num_processes"),
)
"""Keys of the file that ``accelerate config`` writes; it begins with the first two."""

PLAIN_KEYS = {
    name: option.name
    for option in OPTIONS
    if option.in_file and option not in (ENV, MODULE)
    for name in option.names
}
"""Keys that hold one value, with the name of their option."""

KEYS = (*PROGRAM_KEYS, ENV.name, *PLAIN_KEYS, *SECTIONS)


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
    if entry.key == CONFIG.name:
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
    if ENV.name not in entries:
        return {}
    variables = mapping(path, entries[ENV.name]).values()
    return {ENV.name: tuple(_setting(variable) for variable in variables)}


def _setting(variable: Entry) -> Fact[str]:
    name = variable.key.removeprefix(f"{ENV.name}.")
    if "=" in name:
        raise UsageError(f"{variable.origin}: a name with = in it", "write NAME: VALUE")
    return Fact(f"{name}={scalar(variable)}", variable.origin)


def _module(entries: Mapping[str, Entry]) -> Layer:
    # The key holds the module's name; the flag only marks SCRIPT as a module.
    if MODULE.name not in entries:
        return {}
    return {MODULE.name: (Fact("true", entries[MODULE.name].origin),)}


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
