"""TMPDIR on a file system that does not respond: a job runs without it."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.launched import Launcher

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2

WAITS_FOR_A_LINE = """
    import os, sys, time
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        print("ready", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        sys.exit(7)
    print("error file", os.environ.get("TORCHELASTIC_ERROR_FILE"))
"""


@contextmanager
def hung(folder: Path) -> Iterator[None]:
    """Mount a file system at ``folder`` whose server reads no request."""
    try:
        server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error.strerror}")
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    try:
        if LIBC.mount(b"hung", os.fsencode(folder), b"fuse", 0, options):
            pytest.skip(f"no mounts here: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        LIBC.umount2(os.fsencode(folder), MNT_DETACH)
        os.close(server)


@pytest.fixture
def folder(clusterrun: Launcher) -> Path:
    """Return a folder for TMPDIR."""
    folder = clusterrun.folder / "tmp"
    folder.mkdir()
    return folder


@pytest.mark.needs("root")
def test_restart_while_tmpdir_hangs(clusterrun: Launcher, folder: Path) -> None:
    """The job completes; workers have no error file."""
    job = clusterrun.script(
        WAITS_FOR_A_LINE, "--max-restarts", "1", workers=1, environ={"TMPDIR": str(folder)}
    )
    job.wait_for("ready")
    with hung(folder):
        (clusterrun.folder / "go").touch()

        ended = job.ended()

    assert (ended.code, job.wait_for("error file .*")) == (0, ["error file None"])
    assert job.left() == []


@pytest.mark.long
@pytest.mark.needs("root")
def test_start_while_tmpdir_hangs(clusterrun: Launcher, folder: Path) -> None:
    (clusterrun.folder / "go").touch()
    with hung(folder):
        job = clusterrun.script(
            WAITS_FOR_A_LINE, "--max-restarts", "1", workers=2, environ={"TMPDIR": str(folder)}
        )

        ended = job.ended()

    assert (ended.code, job.wait_for("error file .*", 2)) == (0, ["error file None"] * 2)
