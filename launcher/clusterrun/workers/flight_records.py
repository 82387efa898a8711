"""What torch's flight recorder has written: the last collectives of a rank, when one timed out.

torch writes PREFIX followed by the rank when NCCL's watchdog ends a collective that has timed out
(FlightRecorderDetail.cpp, and TraceUtils.h of torch before 2.7). torchfrtrace reads the files: it
unpickles them, so that one which another user has put there must not be named.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from clusterrun.bounds import GlobalRank
from clusterrun.processes import TimeLimitedCalls

PREFIX_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""The first one that is set counts."""

SECONDS_TO_START = 2.0
"""A worker may write before the agent knows that it runs."""

SECONDS_TO_LOOK = 1.0
"""The file system of a home may hang."""


def flight_records_line(
    environ: Mapping[str, str], ranks: Iterable[GlobalRank], started: float
) -> str:
    """Return the line that names the files of workers; "" if there are none.

    Args:
        environ: that of the workers.
        ranks: those of this node.
        started: when the first of them started, in seconds since the epoch: older files are not
            theirs.

    """
    paths = [Path(f"{prefix}{rank}") for rank in ranks for prefix in _prefixes(environ)]

    def written() -> list[str]:
        return [str(path) for path in paths if _written_at(path) >= started - SECONDS_TO_START]

    files = TimeLimitedCalls(SECONDS_TO_LOOK).run(written)
    return f"torch's flight recorder (torchfrtrace reads it): {', '.join(files)}" if files else ""


def _prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    if given := next(filter(None, map(environ.get, PREFIX_VARIABLES)), None):
        yield given
        return
    cache = f"{environ.get('HOME') or '/tmp'}/.cache/torch"  # noqa: S108 - as torch has it
    yield f"{cache}/comm_lib_trace_rank_"
    # torch 2.7 and before.
    yield f"{cache}/nccl_trace_rank_"
    yield "/tmp/nccl_trace_rank_"  # noqa: S108 - as torch had it


def _written_at(path: Path) -> float:
    """Return when this user wrote a file, in seconds since the epoch; -1.0 if that is not so."""
    try:
        found = path.lstat()
    except OSError:
        return -1.0
    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
    return found.st_mtime if is_ours else -1.0
