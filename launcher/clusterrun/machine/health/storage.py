"""Checks of folders that every job writes to: shared memory, temporary files, logs."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from clusterrun.machine.health.finding import Finding, failure, warning, well

MIB = 1 << 20

LITTLE_SHARED_MEMORY = 1024 * MIB
TOO_LITTLE_SHARED_MEMORY = 128 * MIB
"""Docker's default of 64 MiB is too little for one data loader."""

LITTLE_SPACE = 1024 * MIB
TOO_LITTLE_SPACE = 64 * MIB

WRITTEN = MIB
"""Bytes that are written to see whether a folder takes them: a quota shows nowhere else."""


def check_shared_memory(folder: Path) -> Finding:
    """Check the folder that data loaders and NCCL share memory by."""
    what = f"shared memory ({folder})"
    advice = "data loaders and NCCL need it: in Docker --shm-size=16g; remove what others have left"
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return failure(what, str(error.strerror), advice)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    words = f"{size // MIB} MiB, {free // MIB} MiB free"
    if free < TOO_LITTLE_SHARED_MEMORY:
        return failure(what, words, advice)
    return warning(what, words, advice) if free < LITTLE_SHARED_MEMORY else well(what, words)


def check_folder(what: str, folder: Path, elsewhere: str) -> Finding:
    """Check that a folder can be written to, and has room.

    ``elsewhere`` says how to choose another one.
    """
    what = f"{what} ({folder})"
    advice = f"free some space, or {elsewhere}"
    try:
        found = os.statvfs(folder)
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(WRITTEN))
            file.flush()
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        advice = advice if is_full else f"make it a folder that you may write to, or {elsewhere}"
        return failure(what, str(error.strerror), advice)
    free = found.f_bavail * found.f_frsize
    words = f"{free // MIB} MiB free"
    if free < TOO_LITTLE_SPACE:
        return failure(what, words, advice)
    return warning(what, words, advice) if free < LITTLE_SPACE else well(what, words)


def check_folders(temporary: Path, logs: Path | None) -> Iterator[Finding]:
    """Check the folder for temporary files, and that for logs if there is one."""
    yield check_folder("temporary files", temporary, "set TMPDIR to another folder")
    if logs is not None:
        existing = next(folder for folder in (logs, *logs.parents) if folder.exists())
        yield check_folder("logs", existing, "give another --log-dir")
