"""What torch's flight recorder has written: the last collectives of a rank, when one timed out.

torch writes PREFIX followed by the rank when NCCL's watchdog ends a collective that has timed out
(FlightRecorderDetail.cpp, and TraceUtils.h of torch before 2.7). torchfrtrace reads the files.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from clusterrun.domain.outcome import Fate
from clusterrun.workers.time_limited import TimeLimited

PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The first one that is set counts."""

SECONDS_TO_START = 2.0
"""A worker may write before the agent knows that it runs."""

SECONDS_TO_LOOK = 1.0
"""The file system of a home may hang."""


def flight_records(environ: Mapping[str, str], fates: Sequence[Fate]) -> tuple[Path, ...]:
    """Return the files of workers that have ended, written since they started.

    Args:
        environ: that of the workers.
        fates: the ends of this node's workers.

    """
    started = min((fate.clock - fate.ran_for for fate in fates), default=0.0) - SECONDS_TO_START
    paths = [Path(f"{prefix}{fate.rank}") for fate in fates for prefix in _prefixes(environ)]

    def written() -> tuple[Path, ...]:
        return tuple(path for path in paths if _changed_at(path) >= started)

    return TimeLimited(SECONDS_TO_LOOK).run(written) or ()


def _prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    if given := next(filter(None, map(environ.get, PREFIX_VARIABLES)), None):
        yield given
        return
    cache = f"{environ.get('HOME') or '/tmp'}/.cache/torch"  # noqa: S108 - as torch has it
    yield f"{cache}/comm_lib_trace_rank_"
    # torch 2.7 and before.
    yield f"{cache}/nccl_trace_rank_"
    yield "/tmp/nccl_trace_rank_"  # noqa: S108 - as torch had it


def _changed_at(path: Path) -> float:
    """Return when a file was written, in seconds since the epoch; -1.0 if it does not exist."""
    try:
        return path.stat().st_mtime
    except OSError:
        return -1.0
