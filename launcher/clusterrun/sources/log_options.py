"""The folder of log files, and the prefix of printed lines."""

import os
from collections.abc import Iterator, Mapping, Sequence

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.errors import UsageError
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.rows.logs import LOG_DIR, REDIRECTS, TEE, WORKERLOG
from clusterrun.sources.options.rows.output import (
    DUPLICATE_STDERR_FILTERS,
    DUPLICATE_STDOUT_FILTERS,
    LOG_LINE_PREFIX_TEMPLATE,
)
from clusterrun.sources.options.suggestions import did_you_mean
from clusterrun.sources.other_launchers.torchrun_defaults import default_prefix
from clusterrun.sources.programs.file_kinds import FileKind, kind_of
from clusterrun.sources.settings import Settings, value_of

DEFAULT_FOLDER = "clusterrun-logs"
"""In the current folder, where people look; torchrun creates one in /tmp, and leaves it there."""

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""torchrun's variable, from before it had a flag (run.py of 2.13)."""

NAMES_IN_PREFIXES = ("rank", "local_rank", "role_name", "host", "node_rank")
"""Names that a template may have, as in ``${rank}``."""

WANT_FILES: tuple[Option[object], ...] = (
    REDIRECTS,
    DUPLICATE_STDOUT_FILTERS,
    DUPLICATE_STDERR_FILTERS,
    WORKERLOG,
)
"""Options that need log files, but not --tee, which prints all lines as well."""


def find_log_dir(sources: Sequence[Settings]) -> Fact[str | None]:
    """Return the folder for log files; if files are needed and it is not set, the default one."""
    log_dir = value_of(LOG_DIR, sources)
    wanted = (value_of(option, sources) for option in WANT_FILES)
    origin = next((fact.origin for fact in wanted if fact.value), None)
    if log_dir.value is None and origin is not None:
        log_dir = Fact(DEFAULT_FOLDER, origin)
    if log_dir.value == os.devnull:
        # As with torchrun, it means that no files are written.
        return Fact(None, log_dir.origin)
    if kind_of(log_dir.value or "") not in {FileKind.NOTHING, FileKind.FOLDER}:
        raise UsageError(
            f"{log_dir.origin}: {log_dir.value} exists and is not a folder",
            "give another path" if origin != log_dir.origin else "give --log-dir DIR",
        )
    return log_dir


def where_logs_go(job: JobSpec) -> Iterator[str]:
    """Yield a notice with the folder of log files, if the user did not set it."""
    asked_by = {getattr(job, option.name).origin for option in WANT_FILES} - {"default"}
    if job.log_dir.value == DEFAULT_FOLDER and job.log_dir.origin in asked_by:
        latest = "" if job.as_torchrun.value else f"; {DEFAULT_FOLDER}/latest is the last run"
        yield (
            f"{job.log_dir.origin} is set, but not --log-dir: log files go to {DEFAULT_FOLDER}{latest}"
        )


def find_prefix(
    sources: Sequence[Settings], variables: Mapping[str, str], called: str
) -> Fact[str | None]:
    """Return the template of the prefix of printed lines; "" for no prefix."""
    # The weakest of all sources, as PYTHON_EXEC is.
    text = Fact(variables.get(PREFIX_VARIABLE, ""), PREFIX_VARIABLE)
    if text.value:
        default = LOG_LINE_PREFIX_TEMPLATE.read(text)
    else:
        default = default_prefix(called, is_teed=value_of(TEE, sources).value is not None)
    return value_of(LOG_LINE_PREFIX_TEMPLATE, sources, default)


def unknown_in_prefix(prefix: Fact[str | None]) -> Iterator[str]:
    """Yield a warning for each unknown name in the template, which is printed as it is."""
    if "$" not in (prefix.value or ""):
        return
    # Its import compiles a pattern.
    from string import Template

    known = [f"${{{name}}}" for name in NAMES_IN_PREFIXES]
    for name in Template(prefix.value or "").get_identifiers():
        if name not in NAMES_IN_PREFIXES:
            typed = f"${{{name}}}"
            hint = did_you_mean(typed, known) or f"known names: {', '.join(NAMES_IN_PREFIXES)}"
            yield f"{prefix.origin}: unknown name {typed}; {hint}"
