"""The folder for log files, looked at before anything else of a job: days later is too late."""

import errno
import os
from pathlib import Path

from clusterrun.domain.facts import Fact
from clusterrun.errors import MachineError


def expect_log_folder(log_dir: Fact[str | None]) -> None:
    """Return if log files are not wanted, or the folder for them is there or may be made.

    It is made with the first file: a job that can't start leaves nothing.

    Raises:
        MachineError: it can't be made, or nothing can be written in it.

    """
    if log_dir.value is None:
        return
    folder = Path(log_dir.value).absolute()
    there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if trouble := _trouble(there):
        raise MachineError(
            f"{log_dir.origin}: no log files can be written in {log_dir.value}: {there}:"
            f" {os.strerror(trouble)}",
            "--log-dir DIR names another folder",
        )


def _trouble(folder: Path) -> int:
    """Return the error that making a file in ``folder`` would meet; 0 if none is known."""
    if not folder.is_dir():
        return errno.ENOTDIR
    return 0 if os.access(folder, os.W_OK | os.X_OK, effective_ids=True) else errno.EACCES
