"""The folder for log files, made before any worker starts: days later is too late."""

import errno
import os
from pathlib import Path

from launcher.domain.facts import Fact
from launcher.errors import MachineError


def make_log_folder(log_dir: Fact[str | None]) -> None:
    """Make the folder, if one is wanted and it does not exist.

    Raises:
        MachineError: it can't be made, or nothing can be written in it.

    """
    if log_dir.value is None:
        return
    folder = Path(log_dir.value)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise MachineError(
            f"{log_dir.origin}: no log files can be written in {folder}: {error.strerror}",
            "--log-dir DIR names another folder",
        ) from None
