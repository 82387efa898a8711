"""A rank whose script has failed but whose process does not exit, because of an exit handler or a thread."""

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.as_another_user import run_as_another_user
from tests.contract.launched import Launcher, await_text

EXIT_HANDLER = """
    import atexit, os, time
    def upload():
        time.sleep(600)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        atexit.register(upload)
        raise ValueError("loss is nan")
    while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.05)
"""

THREAD = """
    import os, threading, time
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        threading.Thread(target=time.sleep, args=(600,)).start()
        raise ValueError("loss is nan")
    while os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(0.05)
"""

GRACE = ("--shutdown-timeout", "1")


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("script", "frame"),
    [
        pytest.param(EXIT_HANDLER, r'File "\S+", line 4 in upload', id="exit handler"),
        pytest.param(THREAD, r'File "\S+", line \d+ in _shutdown', id="thread"),
    ],
)
def test_failed_rank_that_does_not_exit_is_the_cause(
    clusterrun: Launcher, method: str, script: str, frame: str
) -> None:
    """The report has its traceback and the stack in which it hung."""
    ended = clusterrun.script(script, *GRACE, "--start-method", method, workers=2).ended()

    _, _, report = ended.err.rpartition("clusterrun: rank 1 on ")
    assert ended.code == 1, ended
    assert re.search(
        r"clusterrun: rank 1 failed \d+ s ago and has not exited.*shutdown-timeout", ended.err
    )
    assert "rank 1 did not exit within 1 s (--shutdown-timeout) of its failure" in ended.err
    assert "ValueError: loss is nan" in report
    assert re.search(
        r"did not exit after its failure, and was killed; its stack:\n(.*\n)*? +" + frame, report
    )
    assert "rank 0: stopped by clusterrun\n" in report
    assert report.endswith("clusterrun: exit code 1, from rank 1\n")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_restart_begins_after_rank_that_does_not_exit_is_killed(
    clusterrun: Launcher, method: str
) -> None:
    options = (*GRACE, "--max-restarts", "1", "--start-method", method)

    ended = clusterrun.script(EXIT_HANDLER, *options, workers=2).ended()

    assert ended.code == 0, ended
    assert "clusterrun: restarting all workers (restart 1 of 1)" in ended.err


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_single_worker_that_does_not_exit_is_named_and_not_killed(
    clusterrun: Launcher, method: str
) -> None:
    script = EXIT_HANDLER.replace('== "1" and', '== "0" and')

    job = clusterrun.script(script, *GRACE, "--start-method", method, workers=1)
    job.wait_for(
        r"clusterrun: rank 0 failed \d+ s ago and has not exited, in upload at script0.py:4:"
        r" it is left alone, as no other rank waits for it\n"
    )
    job.signal(signal.SIGINT)

    assert job.ended().code == 130


FLOOD = """
import socket, sys, time
from pathlib import Path

names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
addresses = ["\\0" + name[1:] for name in names if name.startswith("@")]
flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
end = time.monotonic() + 3
while time.monotonic() < end:
    for address in addresses:
        try:
            flood.sendto(b"?", address)
        except OSError:
            time.sleep(0.0001)
"""


@pytest.mark.needs("root", "setpriv")
def test_socket_flood_of_another_user_does_not_hide_failure(
    clusterrun: Launcher, tmp_path: Path
) -> None:
    """Another user can send to any socket that has no file."""
    go_file = tmp_path / "fails"
    script = THREAD.replace(
        "raise", f"while not os.path.exists({str(go_file)!r}): time.sleep(.1)\n        raise"
    )
    job = clusterrun.script(script, *GRACE, "--events=events", "--start-method=spawn", workers=2)
    await_text(clusterrun.folder / "events", '"started"')
    flood = run_as_another_user(FLOOD)
    go_file.touch()

    ended = job.ended()

    assert flood.returncode == 0, flood.stderr
    assert ended.code == 1, ended
    assert "rank 1 did not exit within 1 s (--shutdown-timeout) of its failure" in ended.err


WRAPPERS = {
    "bash": '"$python" "$@"\nexit $?',
    "exec": 'exec "$python" "$@"',
    "unshare": 'exec unshare --fork --pid --kill-child "$python" "$@"',
    "uv": 'exec uv run --quiet --offline --no-project --python "$python" python "$@"',
}
"""Scripts that run the interpreter, by name."""


@pytest.mark.parametrize(
    "name",
    [
        "",
        "bash",
        "exec",
        pytest.param("unshare", marks=pytest.mark.needs("root", "unshare")),
        pytest.param("uv", marks=pytest.mark.needs("uv")),
    ],
)
def test_failed_rank_that_exits_in_time_is_not_killed(
    clusterrun: Launcher, tmp_path: Path, name: str
) -> None:
    """Its exit handlers have the time of --shutdown-timeout, also below a wrapper of Python."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/bash\npython={sys.executable}\n{WRAPPERS.get(name)}\n")
    wrapper.chmod(0o755)
    script = """
        import atexit, os, time
        if os.environ["RANK"] == "1":
            atexit.register(lambda: (time.sleep(1), print("uploaded", flush=True)))
            raise ValueError("loss is nan")
        time.sleep(600)
    """

    options = (f"--python={wrapper}", "--start-method=spawn") if name else ()
    ended = clusterrun.script(script, *options, "--shutdown-timeout=7", workers=2).ended()

    assert (ended.code, ended.out.count("uploaded")) == (1, 1), ended
    assert "has not exited" not in ended.err
    assert "failed: ValueError: loss is nan\n" in ended.err
