"""TMPDIR on a file system that does not respond: a job runs without it."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.contract.launched import Launcher

LIBC = ctypes.CDLL(None, use_errno=True)
MNT_DETACH = 2

FAILS_WHEN_FILE_EXISTS = """
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


@pytest.mark.needs("root")
@pytest.mark.parametrize("hangs_at_start", [False, pytest.param(True, marks=pytest.mark.long)])
def test_job_runs_while_tmpdir_hangs(clusterrun: Launcher, *, hangs_at_start: bool) -> None:
    """Workers that start meanwhile have no error file."""
    folder, go_file = clusterrun.folder / "tmp", clusterrun.folder / "go"
    folder.mkdir()
    with ExitStack() as mounts:
        if hangs_at_start:
            mounts.enter_context(hung(folder))
            go_file.touch()
        environ = {"TMPDIR": str(folder)}
        job = clusterrun.script(
            FAILS_WHEN_FILE_EXISTS, "--max-restarts=1", workers=2, environ=environ
        )
        job.wait_for("ready", 2)
        if not hangs_at_start:
            mounts.enter_context(hung(folder))
            go_file.touch()

        ended = job.ended()

    assert (ended.code, job.wait_for("error file .*", 2)) == (0, ["error file None"] * 2)
    assert job.left() == []
