"""Processes that ranks leave running: after success they may end by themselves, after a failure they are killed."""

import re
import signal

import pytest

from tests.contract.launched import Launcher, node_options

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
"""Rank 0 leaves a process that prints when the file ``go`` exists."""

STILL_RUNNING = (
    r"the ranks have ended; still running: sh \(pid (\d+), of rank 0\); waiting up to 25 s"
)


def test_leftover_process_ends_by_itself(clusterrun: Launcher) -> None:
    """All that it prints is shown, and is in the log of its rank."""
    job = clusterrun.script(UPLOAD, "--log-dir=logs", "--tee=3", workers=2)
    job.wait_for(STILL_RUNNING)

    (clusterrun.folder / "go").touch()
    ended = job.ended()

    lines = [str(number) for number in range(1, 20_001)]
    [log] = clusterrun.folder.glob("logs/latest/*/*/rank-0.out")
    assert ended.code == 0
    assert re.findall(r"(?m)^\[rank 0\] (\d+)$", ended.out) == lines
    assert "[rank 0] at the end\n" in ended.err
    assert log.read_text().splitlines() == ["rank 0 ends", *lines]
    assert (clusterrun.folder / "uploaded").read_text() == "all\n"


def test_child_of_ended_rank_runs_while_other_ranks_run(clusterrun: Launcher) -> None:
    """It is in the process group of the rank that has ended."""
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


SERVER = "trap 'echo closes >&2; exit' TERM; touch serves; while :; do sleep 0.1; done"
IGNORES_TERM = "trap '' TERM; touch serves; sleep 1000; sleep 1000"
PROCESS = r"sh \(pid \d+, of rank 0\)"


@pytest.mark.parametrize(
    ("program", "seconds", "lines"),
    [
        (
            SERVER,
            2,
            (
                rf"clusterrun: the ranks have ended; still running: {PROCESS};"
                r" waiting up to 2 s \(--shutdown-timeout; Ctrl-C ends them\)\n"
                rf"clusterrun: {PROCESS} did not end within 2 s: sending SIGTERM\n"
                r"\[rank 0\] closes\n"
            ),
        ),
        (
            IGNORES_TERM,
            0.5,
            (
                rf"clusterrun: {PROCESS} did not end within 0\.5 s: sending SIGTERM\n"
                rf"clusterrun: {PROCESS} did not end within 5 s of SIGTERM: sending SIGKILL\n"
            ),
        ),
    ],
    ids=["server", "ignores SIGTERM"],
)
def test_leftover_process_is_ended_after_the_timeout(
    clusterrun: Launcher, program: str, seconds: float, lines: str
) -> None:
    """The exit code is that of the ranks."""
    script = f"""
        import os, subprocess, time
        if os.environ["RANK"] == "0":
            subprocess.Popen(["sh", "-c", {program!r}])
            while not os.path.exists("serves"):
                time.sleep(0.05)
    """
    ended = clusterrun.script(script, f"--shutdown-timeout={seconds}", workers=2).ended()

    assert ended.code == 0
    assert re.fullmatch(lines, ended.err)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_ends_leftover_process_and_job_succeeds(clusterrun: Launcher, number: int) -> None:
    job = clusterrun.script(UPLOAD, "--shutdown-timeout=1000", workers=2)
    job.wait_for("the ranks have ended")

    job.signal(number)

    ended = job.ended()
    assert ended.code == 0
    assert "killing processes that the ranks on this node left running\n" in ended.err
    assert job.left() == []


@pytest.mark.parametrize("fails", [0, 1])
def test_leftover_process_is_killed_at_once_after_a_failure(
    clusterrun: Launcher, fails: int
) -> None:
    """Its rank has failed, or has succeeded before another one failed."""
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


def test_node_does_not_wait_for_leftover_process_of_another_node(clusterrun: Launcher) -> None:
    """A signal then ends the process, and the job has succeeded."""
    script = """
        import os, subprocess
        if os.environ["RANK"] == "1":
            subprocess.Popen(["sh", "-c", "sleep 1000; sleep 1000"])
    """
    first, second = (
        clusterrun.script(script, *options, "--shutdown-timeout=1000", workers=1)
        for options in node_options()
    )

    ended = first.ended()
    assert ended.code == 0
    assert "still running" not in ended.err
    second.wait_for(r"the ranks of this node have ended; still running: sh \(pid \d+, of rank 1\)")
    second.signal(signal.SIGTERM)
    assert second.ended().code == 0
    assert second.left() == []
