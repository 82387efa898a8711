"""Checks the folder for log files before anything else of a job: an error days later is too late."""

import errno
import os
from pathlib import Path

from clusterrun.domain.facts import Fact
from clusterrun.errors import MachineError


def check_log_folder(log_dir: Fact[str | None]) -> None:
    """Return if no log files are wanted, or the folder for them can be written or made.

    It is made with the first file: a job that can't start leaves nothing.

    Raises:
        MachineError: it can't be made, or nothing can be written in it.

    """
    if log_dir.value is None:
        return
    folder = Path(log_dir.value).absolute()
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if error := _error_of_writing(existing):
        raise MachineError(
            f"{log_dir.origin} {log_dir.value}: log files can't be written there:"
            f" {existing}: {os.strerror(error)}",
            _hint(existing, error),
        )


def _error_of_writing(folder: Path) -> int:
    """Return the error that making a file in ``folder`` would meet; 0 if none is known."""
    if not folder.is_dir():
        return errno.ENOTDIR
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return errno.EROFS
    return 0 if os.access(folder, os.W_OK | os.X_OK, effective_ids=True) else errno.EACCES


def _hint(folder: Path, error: int) -> str:
    if error == errno.EACCES:
        return f"name another folder with --log-dir DIR, or type: chmod u+wx {folder}"
    return "name another folder with --log-dir DIR"
