"""The folder of log files, the prefix of printed lines, and whether workers may print colours."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clusterrun.errors import MachineError, UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.file_kinds import FOLDER_DELETED, FileKind, kind_of
from clusterrun.job.job import Job
from clusterrun.job.sources import PREFIX, TORCHRUN_PREFIX, Layer, value_of
from clusterrun.job.suggestions import did_you_mean
from clusterrun.job.this_process import ThisProcess

DEFAULT_FOLDER = "clusterrun-logs"
"""In the current folder, where users look for it; torchrun leaves one in /tmp."""

PREFIX_NAMES = ("rank", "local_rank", "role_name", "host", "hostname", "node_rank")
"""Names in a template of the prefix, as in ``${rank}``."""

MAX_ATTEMPT_DIGITS = 4
"""Longer numbers are ignored: folders that others create in the log folder may have any number."""

NEED_LOG_FILES = ("redirects", "duplicate_stdout_filters", "duplicate_stderr_filters")
"""Options that need log files; ``--tee`` does not, because it also prints all lines."""


def find_log_dir(sources: Sequence[Layer]) -> Setting[str | None]:
    """Return the folder for log files; None if none are written.

    Raises:
        UsageError: it exists and is not a folder.

    """
    log_dir = value_of("log_dir", sources)
    wanted = (value_of(name, sources) for name in NEED_LOG_FILES)
    origin = next((setting.origin for setting in wanted if setting.value), None)
    if log_dir.value is None and origin is not None:
        log_dir = Setting(DEFAULT_FOLDER, origin)
    if log_dir.value == os.devnull:
        # As with torchrun, no log files are written.
        return Setting(None, log_dir.origin)
    if kind_of(log_dir.value or "") not in {FileKind.NOTHING, FileKind.FOLDER}:
        raise UsageError(
            f"{log_dir.origin}: {log_dir.value} exists and is not a folder",
            "give another path" if origin != log_dir.origin else "give --log-dir DIR",
        )
    return log_dir


def absolute(path: str, origin: str) -> Path:
    """Return ``path``, which ``origin`` sets, as an absolute path.

    Raises:
        MachineError: the path is relative and the current folder has been deleted.

    """
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise MachineError(
            f"{origin} {path}: {FOLDER_DELETED}",
            "change to a folder that exists, or give an absolute path",
        ) from None


def log_dir_notices(job: Job) -> Iterator[str]:
    """Yield a notice if the user did not choose the folder of log files, or if none are written."""
    if job.starting.exec and is_log_dir_from_variable(job):
        yield (
            f"{job.origin('log_dir')} has no effect with {job.origin('exec')}: no agent remains that"
            " would write log files"
        )
    asked_by = {job.origin(name) for name in NEED_LOG_FILES} - {"default"}
    if job.files.log_dir == DEFAULT_FOLDER and job.origin("log_dir") in asked_by:
        latest = "" if job.as_torchrun else f"; {DEFAULT_FOLDER}/latest is the last run"
        yield (
            f"{job.origin('log_dir')} is set, but not --log-dir: log files go to"
            f" {DEFAULT_FOLDER}{latest}"
        )


def is_log_dir_from_variable(job: Job) -> bool:
    """Return whether a variable sets the log folder, perhaps for all jobs of the machine."""
    names = {f"{prefix}LOG_DIR" for prefix in (PREFIX, TORCHRUN_PREFIX)}
    return job.files.log_dir is not None and job.origin("log_dir") in names


def unknown_prefix_names(prefix: Setting[str | None]) -> Iterator[str]:
    """Yield a warning for each unknown name in the template, which is printed unchanged."""
    if "$" not in (prefix.value or ""):
        return
    # The import compiles a regular expression.
    from string import Template

    known = [f"${{{name}}}" for name in PREFIX_NAMES]
    for name in Template(prefix.value or "").get_identifiers():
        if name not in PREFIX_NAMES:
            typed = f"${{{name}}}"
            hint = did_you_mean(typed, known) or f"known names: {', '.join(PREFIX_NAMES)}"
            yield f"{prefix.origin}: unknown name {typed}; {hint}"


def shows_colours(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal shows colours and the user has not disabled them (no-color.org)."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def find_coloured(
    process: ThisProcess,
    variables: Mapping[str, str],
    cluster: Setting[str],
    log_dir: Setting[str | None],
) -> Setting[bool]:
    """Return whether the output of workers goes only to a terminal, and it shows colours."""
    # mpirun gives each task a terminal, but merges their output.
    has_terminal = process.has_terminal and cluster.value != "openmpi"
    value = has_terminal and shows_colours(variables) and log_dir.value is None
    return Setting(value, "the terminal")


def find_kept_attempts(
    log_dir: Setting[str | None], run_id: str, *, is_torchrun: bool
) -> Setting[int]:
    """Return the number of attempts of this run that already have log folders; later ones are numbered on.

    With torchrun's names, each launch has a new folder.
    """
    if log_dir.value is None or is_torchrun:
        return Setting(0, "default")
    folder = Path(log_dir.value) / run_id
    # Files and links count too, because no folder can have their name.
    names = [path.name.removeprefix("attempt-") for path in folder.glob("attempt-*")]
    kept = [int(name) for name in names if name.isdecimal() and len(name) <= MAX_ATTEMPT_DIGITS]
    return Setting(max(kept) + 1, str(folder)) if kept else Setting(0, "default")
