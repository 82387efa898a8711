"""Where log files go, and what stands before printed lines."""

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
from clusterrun.sources.other_launchers.torchrun_lines import default_prefix
from clusterrun.sources.programs.file_kinds import FileKind, kind_of
from clusterrun.sources.settings import Settings, value_of

DEFAULT_FOLDER = "clusterrun-logs"
"""In the current folder, where people look; torchrun makes one in /tmp, and leaves it there."""

PREFIX_VARIABLE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
"""torchrun's own, before it had a flag for it (run.py of 2.13)."""

NAMES_IN_PREFIXES = ("rank", "local_rank", "role_name", "host", "node_rank")
"""What is filled in where it stands in a template as ``${rank}``."""

WANT_FILES: tuple[Option[object], ...] = (
    REDIRECTS,
    DUPLICATE_STDOUT_FILTERS,
    DUPLICATE_STDERR_FILTERS,
    WORKERLOG,
)
"""Options that say what is written to files, but not where; not --tee, all of which is printed."""


def find_log_dir(sources: Sequence[Settings]) -> Fact[str | None]:
    """Return the folder for log files; where files are wanted and none is said, one of ours.

    Raises:
        UsageError: there is something else at its place.

    """
    log_dir = value_of(LOG_DIR, sources)
    wanted = (value_of(option, sources) for option in WANT_FILES)
    origin = next((said.origin for said in wanted if said.value), None)
    if log_dir.value is None and origin is not None:
        log_dir = Fact(DEFAULT_FOLDER, origin)
    if log_dir.value == os.devnull:
        # torchrun's way to say that no files are wanted.
        return Fact(None, log_dir.origin)
    if kind_of(log_dir.value or "") not in {FileKind.NOTHING, FileKind.FOLDER}:
        raise UsageError(
            f"{log_dir.origin}: {log_dir.value} exists and is not a folder",
            "give another path" if origin != log_dir.origin else "say --log-dir DIR",
        )
    return log_dir


def where_logs_go(job: JobSpec) -> Iterator[str]:
    """Yield a line that says where log files are, if the user named no place for them."""
    asked_by = {getattr(job, option.name).origin for option in WANT_FILES} - {"default"}
    if job.log_dir.value == DEFAULT_FOLDER and job.log_dir.origin in asked_by:
        latest = "" if job.as_torchrun.value else f"; {DEFAULT_FOLDER}/latest is the last run"
        yield (
            f"{job.log_dir.origin} without --log-dir: log files are written below"
            f" {DEFAULT_FOLDER}{latest}"
        )


def find_prefix(
    sources: Sequence[Settings], variables: Mapping[str, str], called: str
) -> Fact[str | None]:
    """Return the template of what stands before printed lines; "" for nothing.

    Raises:
        UsageError: it is more than one line.

    """
    # It beats the default alone, as PYTHON_EXEC does.
    text = Fact(variables.get(PREFIX_VARIABLE, ""), PREFIX_VARIABLE)
    if text.value:
        default = LOG_LINE_PREFIX_TEMPLATE.read(text)
    else:
        default = default_prefix(called, is_teed=value_of(TEE, sources).value is not None)
    return value_of(LOG_LINE_PREFIX_TEMPLATE, sources, default)


def unknown_in_prefix(prefix: Fact[str | None]) -> Iterator[str]:
    """Yield a line for each name in the template of which nothing is known: it is left as it is."""
    if "$" not in (prefix.value or ""):
        return
    # Compiles its pattern when it is imported.
    from string import Template

    known = [f"${{{name}}}" for name in NAMES_IN_PREFIXES]
    for name in Template(prefix.value or "").get_identifiers():
        if name not in NAMES_IN_PREFIXES:
            typed = f"${{{name}}}"
            hint = did_you_mean(typed, known) or f"there are {', '.join(NAMES_IN_PREFIXES)}"
            yield f"{prefix.origin}: {typed} is not filled in; {hint}"
