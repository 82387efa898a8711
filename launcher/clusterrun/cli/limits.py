"""Limits of open files and of memory that stop the launcher."""

import errno
import resource
from collections.abc import Iterator
from pathlib import Path

from clusterrun.errors import MachineError


def limit_behind(error: BaseException) -> MachineError | None:
    """Return the limit that caused ``error``, with its value; None if no limit did."""
    for cause in _chain(error):
        if isinstance(cause, MemoryError) or _number(cause) == errno.ENOMEM:
            return MachineError("there is not enough memory on this machine, or in this cgroup")
        if _number(cause) == errno.EMFILE:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return MachineError(
                f"too many open files: this process may have {soft} (ulimit -n)",
                "raise the limit: ulimit -n 4096; Docker has --ulimit nofile=4096,"
                " systemd LimitNOFILE=4096",
            )
        if _number(cause) == errno.ENFILE:
            most = Path("/proc/sys/fs/file-max").read_text(encoding="ascii").strip()
            return MachineError(
                f"too many open files: this machine may have {most} (sysctl fs.file-max)"
            )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _number(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None
