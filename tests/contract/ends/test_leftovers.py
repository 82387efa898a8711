"""What ranks have left running when they end: after success it may end by itself, else it is killed."""

import re
import signal
from pathlib import Path

import pytest
from free_ports import free_port

from tests.contract.launched import Launcher

UPLOAD = """
    import os, subprocess
    UPLOADS = '''
    while [ ! -e go ]; do sleep 0.1; done
    seq 20000
    echo at the end >&2
    echo all > uploaded
    '''
    if os.environ["RANK"] == "0":
        subprocess.Popen(["sh", "-c", UPLOADS])
    print("rank", os.environ["RANK"], "ends", flush=True)
"""
"""Rank 0 leaves a process that prints, once a file is there."""

SERVER = """
    import os, subprocess, sys, time
    SERVES = "import signal, time\\n"
    SERVES += "signal.signal(signal.SIGTERM, lambda *_: exit('closes'))\\n"
    SERVES += "open('serves', 'w'); time.sleep(1000)"
    if os.environ["RANK"] == "0":
        subprocess.Popen([sys.executable, "-c", SERVES])
        while not os.path.exists("serves"):
            time.sleep(0.05)
"""
"""Rank 0 leaves a server that ends in order on SIGTERM."""

NAMED = r"the ranks have ended; still running: sh \(pid (\d+), of rank 0\); waiting up to 25 s"


def test_an_upload_ends_after_its_rank(clusterrun: Launcher) -> None:
    """All that it prints is shown, and its work is whole."""
    job = clusterrun.script(UPLOAD, workers=2)
    job.wait_for(NAMED)

    (clusterrun.folder / "go").touch()
    ended = job.ended()

    assert ended.code == 0
    lines = re.findall(r"(?m)^\[rank 0\] (\d+)$", ended.out)
    assert lines == [str(number) for number in range(1, 20_001)]
    assert "[rank 0] at the end\n" in ended.err
    assert (clusterrun.folder / "uploaded").read_text() == "all\n"


def test_its_lines_are_in_the_log_too(clusterrun: Launcher, tmp_path: Path) -> None:
    """Behind those of its rank."""
    job = clusterrun.script(UPLOAD, f"--log-dir={tmp_path}", "--run-id=r", workers=2)
    job.wait_for(NAMED)

    (clusterrun.folder / "go").touch()

    assert job.ended().code == 0
    log = next(path for path in tmp_path.rglob("*rank-0*") if path.suffix == ".out")
    assert log.read_text().splitlines() == ["rank 0 ends", *map(str, range(1, 20_001))]


def test_it_lives_while_other_ranks_run(clusterrun: Launcher) -> None:
    """It is in the process group of a rank that has ended."""
    script = """
        import os, subprocess, time
        if os.environ["RANK"] == "0":
            subprocess.Popen(["sh", "-c", "while [ ! -e go ]; do sleep 0.1; done; echo all > uploaded"])
        else:
            print("runs", flush=True)
            while not os.path.exists("uploaded"):
                time.sleep(0.1)
    """
    job = clusterrun.script(script, workers=2)
    job.wait_for("runs")

    (clusterrun.folder / "go").touch()

    assert job.ended() == (0, "[rank 1] runs\n", "")


def test_a_server_is_named_and_asked_to_end(clusterrun: Launcher) -> None:
    """Its exit code is that of the ranks."""
    ended = clusterrun.script(SERVER, "--shutdown-timeout=2", workers=2).ended()

    assert ended.code == 0
    name = r"python\S* \(pid (\d+), of rank 0\)"
    assert re.fullmatch(
        rf"clusterrun: the ranks have ended; still running: {name};"
        r" waiting up to 2 s \(--shutdown-timeout; Ctrl-C ends them\)\n"
        rf"clusterrun: {name} did not end within 2 s: sending SIGTERM\n"
        r"\[rank 0\] closes\n",
        ended.err,
    )


def test_one_that_ignores_sigterm_is_killed(clusterrun: Launcher) -> None:
    """It is named once more."""
    script = """
        import subprocess
        subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000; sleep 1000"])
    """
    ended = clusterrun.script(script, "--shutdown-timeout=0.5", workers=1).ended()

    assert ended.code == 0
    name = r"sh \(pid (\d+), of rank 0\)"
    assert re.fullmatch(
        rf"clusterrun: {name} did not end within 0\.5 s: sending SIGTERM\n"
        rf"clusterrun: {name} did not end within 5 s of SIGTERM: sending SIGKILL\n",
        ended.err,
    )


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_job_has_succeeded(clusterrun: Launcher, way: int) -> None:
    """Its time would be longer than a test's."""
    job = clusterrun.script(UPLOAD, "--shutdown-timeout=1000", workers=2)
    job.wait_for("the ranks have ended")

    job.signal(way)

    ended = job.ended()
    assert ended.code == 0
    assert "killing processes that the ranks on this node left running\n" in ended.err
    assert job.left() == []


@pytest.mark.parametrize("fails", [0, 1])
def test_after_a_failure_it_is_killed_at_once(clusterrun: Launcher, fails: int) -> None:
    """Of the rank that has failed, and of one that has succeeded before; its time is not waited for."""
    script = f"""
        import os, subprocess, time
        rank = int(os.environ["RANK"])
        if rank == 0:
            subprocess.Popen(["sh", "-c", "sleep 1000; sleep 1000"])
            open("started", "w").close()
        while not os.path.exists("started"):
            time.sleep(0.05)
        raise SystemExit(3 if rank == {fails} else 0)
    """
    job = clusterrun.script(script, "--shutdown-timeout=1000", workers=2)

    ended = job.ended()

    assert ended.code == 3
    assert "still running" not in ended.err
    assert job.left() == []


def test_the_next_attempt_begins_without_it(clusterrun: Launcher) -> None:
    """What the first one has left is killed, what the second one has left may end."""
    script = """
        import os, subprocess
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        subprocess.Popen(["sh", "-c", f"while [ ! -e go ]; do sleep 0.1; done; echo {attempt} >> uploaded"])
        raise SystemExit(0 if attempt == "1" else 3)
    """
    job = clusterrun.script(script, "--max-restarts=1", workers=1)
    job.wait_for(NAMED)

    (clusterrun.folder / "go").touch()

    assert job.ended().code == 0
    assert (clusterrun.folder / "uploaded").read_text() == "1\n"


def test_a_node_does_not_wait_for_what_is_left_on_another(clusterrun: Launcher) -> None:
    """It ends when all ranks have; a signal then ends what is left, and the job has succeeded."""
    meeting = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    script = """
        import os, subprocess
        if os.environ["RANK"] == "1":
            subprocess.Popen(["sh", "-c", "sleep 1000; sleep 1000"])
    """
    first, second = (
        clusterrun.script(
            script, *meeting, f"--node-rank={node}", "--shutdown-timeout=1000", workers=1
        )
        for node in range(2)
    )

    ended = first.ended()
    assert ended.code == 0
    assert "still running" not in ended.err
    second.wait_for(r"the ranks of this node have ended; still running: sh \(pid \d+, of rank 1\)")
    second.signal(signal.SIGTERM)
    assert second.ended().code == 0
    assert second.left() == []
