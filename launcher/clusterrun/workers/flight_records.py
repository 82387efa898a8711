"""Files of torch's flight recorder: the last collectives of a rank, written when one timed out.

NCCL's watchdog writes them to a prefix followed by the rank (FlightRecorderDetail.cpp; TraceUtils.h
before torch 2.7). torchfrtrace unpickles them, so a file that another user may have planted must not be
named.
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

SECONDS_TO_STAT = 1.0
"""A home directory's file system may hang."""


def flight_records_line(
    environ: Mapping[str, str], ranks: Iterable[GlobalRank], started: float
) -> str:
    """Return the line that names the files of workers, or "" if there are none.

    Args:
        environ: the workers' environment.
        ranks: the ranks of this node.
        started: when the first of them started, in seconds since the epoch; older files are ignored.

    """
    paths = [Path(f"{prefix}{rank}") for rank in ranks for prefix in _prefixes(environ)]

    def written() -> list[str]:
        return [str(path) for path in paths if _is_own_file_since(path, started - SECONDS_TO_START)]

    files = TimeLimitedCalls(SECONDS_TO_STAT).run(written)
    return f"torch's flight recorder (torchfrtrace reads it): {', '.join(files)}" if files else ""


def _prefixes(environ: Mapping[str, str]) -> Iterator[str]:
    if given := next(filter(None, map(environ.get, PREFIX_VARIABLES)), None):
        yield given
        return
    cache = f"{environ.get('HOME') or '/tmp'}/.cache/torch"  # noqa: S108 - torch's path
    yield f"{cache}/comm_lib_trace_rank_"
    # torch 2.7 and before.
    yield f"{cache}/nccl_trace_rank_"
    yield "/tmp/nccl_trace_rank_"  # noqa: S108 - torch's path


def _is_own_file_since(path: Path, since: float) -> bool:
    """Return whether this user has written a regular file since a time (seconds since the epoch)."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
    return is_own and found.st_mtime >= since
