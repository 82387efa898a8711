"""A rank whose script has failed and that does not exit: an exit handler or a thread holds it."""

import re
import signal

import pytest

from tests.contract.launched import Launcher

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
        r"did not exit after its failure, and was killed here:\n(.*\n)*? +" + frame, report
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
