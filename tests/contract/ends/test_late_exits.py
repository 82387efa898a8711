"""A rank whose script has failed and that does not exit: an exit handler or a thread holds it."""

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
def test_it_is_the_cause(clusterrun: Launcher, method: str, script: str, frame: str) -> None:
    """All ranks end; the report has its traceback, and the stack in which it hung."""
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
def test_it_counts_as_a_restart(clusterrun: Launcher, method: str) -> None:
    """The next attempt begins when it has been killed."""
    options = (*GRACE, "--max-restarts", "1", "--start-method", method)

    ended = clusterrun.script(EXIT_HANDLER, *options, workers=2).ended()

    assert ended.code == 0, ended
    assert "clusterrun: restarting all workers (restart 1 of 1)" in ended.err


def test_one_that_exits_in_time_is_left_alone(clusterrun: Launcher) -> None:
    """It has what --shutdown-timeout gives it, whatever its handlers do."""
    script = """
        import atexit, os, time
        if os.environ["RANK"] == "1":
            atexit.register(lambda: (time.sleep(1), print("uploaded", flush=True)))
            raise ValueError("loss is nan")
        time.sleep(600)
    """

    ended = clusterrun.script(script, workers=2).ended()

    assert (ended.code, ended.out.count("uploaded")) == (1, 1), ended
    assert "has not exited" not in ended.err


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_single_worker_is_only_named(clusterrun: Launcher, method: str) -> None:
    """No other rank waits for it."""
    script = EXIT_HANDLER.replace('== "1" and', '== "0" and')

    job = clusterrun.script(script, *GRACE, "--start-method", method, workers=1)
    job.wait_for(
        r"clusterrun: rank 0 failed \d+ s ago and has not exited, in upload at script0.py:4:"
        r" it is left alone, as no other rank waits for it\n"
    )
    job.signal(signal.SIGINT)

    assert job.ended().code == 130


FLOODS = """
import socket, sys, time
from pathlib import Path

names = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
places = ["\\0" + name[1:] for name in names if name.startswith("@")]
flood = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
full = time.monotonic() + 3
while time.monotonic() < full:
    for place in places:
        try:
            flood.sendto(b"?", place)
        except OSError:
            time.sleep(0.0001)
"""


@pytest.mark.needs("root", "setpriv")
def test_another_user_does_not_hold_it(clusterrun: Launcher, tmp_path: Path) -> None:
    """Whatever sockets without a file another user floods: the failure is learned of."""
    gate = tmp_path / "fails"
    script = THREAD.replace(
        "raise", f"while not os.path.exists({str(gate)!r}): time.sleep(.1)\n        raise"
    )
    job = clusterrun.script(script, *GRACE, "--events=events", "--start-method=spawn", workers=2)
    await_text(clusterrun.folder / "events", '"started"')
    flood = run_as_another_user(FLOODS)
    gate.touch()

    ended = job.ended()

    assert flood.returncode == 0, flood.stderr
    assert ended.code == 1, ended
    assert "rank 1 did not exit within 1 s (--shutdown-timeout) of its failure" in ended.err


BETWEEN = {
    "bash": '"$python" "$@"\nexit $?',
    "exec": 'exec "$python" "$@"',
    "unshare": 'exec unshare --fork --pid --kill-child "$python" "$@"',
    "uv": 'exec uv run --quiet --offline --no-project --python "$python" python "$@"',
}
"""What stands between the launcher and the interpreter that it was given."""


@pytest.mark.parametrize(
    "between",
    [
        "bash",
        "exec",
        pytest.param("unshare", marks=pytest.mark.needs("root", "unshare")),
        pytest.param("uv", marks=pytest.mark.needs("uv")),
    ],
)
def test_a_program_around_python(clusterrun: Launcher, tmp_path: Path, between: str) -> None:
    """It is told nothing that would end it, and has the time to clean up."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/bash\npython={sys.executable}\n{BETWEEN[between]}\n")
    wrapper.chmod(0o755)
    script = """
        import atexit, os, time
        if os.environ["RANK"] == "1":
            atexit.register(lambda: (time.sleep(0.5), print("uploaded", flush=True)))
            raise ValueError("loss is nan")
        time.sleep(600)
    """

    options = ("--shutdown-timeout=5", f"--python={wrapper}", "--start-method=spawn")
    ended = clusterrun.script(script, *options, workers=2).ended()

    assert (ended.code, ended.out.count("uploaded")) == (1, 1), ended
    assert "failed: ValueError: loss is nan\n" in ended.err
