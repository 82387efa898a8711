"""Jobs that are suspended, or are not: the rows of the table in docs/suspend.md."""

import json
import signal
import time

import pytest

from tests.contract.launched import Job, Launcher

RANKS_SAVE = """
    import atexit, os, sys, time
    from clusterrun import suspend

    rank = int(os.environ["RANK"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    what = dict(word.split("=") for word in sys.argv[1:]).get(str(rank), "")
    atexit.register(lambda: print(f"rank {rank} cleans up", flush=True))
    step = 0
    while True:
        if what == "silent":
            print(f"rank {rank} is ready", flush=True)
            time.sleep(100)
        asked = suspend.requested(step)
        if step == 20:
            # By now the agent knows that this rank asks.
            print(f"rank {rank} is ready", flush=True)
        if asked:
            print(f"rank {rank} saves step {step} of attempt {attempt}", flush=True)
            open(f"rank-{rank}-saves", "w").close()
            if what == "hang":
                time.sleep(100)
            if what == "fail" and attempt == "0":
                sys.exit(3)
            if what == "leave":
                # The other rank is never asked if this one has left before.
                while not os.path.exists("rank-0-saves"):
                    time.sleep(0.01)
                sys.exit(0)
            if what == "fail at exit":
                atexit.register(os._exit, 9)
            suspend.ready()
            print(f"rank {rank} goes on", flush=True)
            break
        step += 1
        time.sleep(0.005 * (1 + rank))
"""

SAVED = r"rank \d saves step (\d+) of attempt {}\n"


def started(clusterrun: Launcher, *options: str, words: tuple[str, ...] = ()) -> Job:
    """Start two ranks; return when both have made some steps."""
    job = clusterrun.script(RANKS_SAVE, *options, "--suspend-signal", "USR1", workers=2, args=words)
    job.wait_for(r"rank \d is ready\n", times=2)
    return job


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_all_ranks_save_at_one_step(number: int, name: str, clusterrun: Launcher) -> None:
    """They end by SystemExit; the last line names the request, the step and the time."""
    job = started(clusterrun)

    job.signal(number)
    end = job.ended()

    [step] = {*job.wait_for(SAVED.format(0), times=2)}
    assert end.code == 75, end
    assert end.out.count(" cleans up\n") == 2
    assert f"{name}: all ranks save at step {step} and end (--suspend-grace 30 s)\n" in end.err
    assert f"clusterrun: exit code 75: suspended at step {step}, " in end.err
    assert end.err.endswith(f" s after {name}\n")
    assert job.left() == []


def test_a_job_exits_with_the_code_that_the_scheduler_needs(clusterrun: Launcher) -> None:
    """And its event log has the request, the step and the time; nothing is left on disk."""
    scratch = clusterrun.folder / "scratch"
    scratch.mkdir()
    job = clusterrun.script(
        RANKS_SAVE,
        *("--suspend-signal", "USR1", "--suspend-exit-code", "99", "--events", "events"),
        workers=2,
        environ={"TMPDIR": str(scratch)},
    )
    job.wait_for(r"rank \d is ready\n", times=2)

    job.signal(signal.SIGUSR1)
    end = job.ended()

    [step] = {*job.wait_for(SAVED.format(0), times=2)}
    records = [json.loads(line) for line in (clusterrun.folder / "events").read_text().splitlines()]
    assert end.code == 99, end
    assert list(scratch.iterdir()) == []
    assert [
        (each["save_step"], each["attempt"]) for each in records if each["event"] == "saving"
    ] == [(int(step), 0)]
    last = records[-1]
    assert (last["reason"], last["code"]) == ("suspended", 99)
    assert (last["by"], last["save_step"]) == ("SIGUSR1", int(step))
    assert last["seconds"] < 30


def test_suspension_fails_if_a_rank_hangs(clusterrun: Launcher) -> None:
    """It is in the report; the rank that has saved exits normally."""
    job = started(clusterrun, "--suspend-grace", "0.5", words=("1=hang",))

    job.signal(signal.SIGUSR1)
    end = job.ended()

    assert end.code == 7, end
    late = "clusterrun: error: not suspended: rank 1 had not saved 0.5 s (--suspend-grace) after"
    assert late in end.err
    assert end.err.endswith("clusterrun: exit code 7: not all ranks saved in time after SIGUSR1\n")
    assert "rank 0 cleans up\n" in end.out
    assert job.left() == []


@pytest.mark.long
def test_rank_that_never_calls(clusterrun: Launcher) -> None:
    """It gets SIGTERM when the others have saved and it has had time for a first call."""
    job = started(clusterrun, words=("1=silent",))

    job.signal(signal.SIGTERM)
    end = job.ended()

    assert end.code == 75, end
    assert "\n  rank 1 never called suspend.requested()\n" in end.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR1, 0), (signal.SIGTERM, 143)])
def test_a_rank_ends_before_all_have_saved(number: int, code: int, clusterrun: Launcher) -> None:
    """There is no suspension: the other rank continues, and SIGTERM stops the job as usual."""
    job = started(clusterrun, words=("1=leave",))

    job.signal(number)
    end = job.ended()

    assert end.code == code, end
    assert "not suspended, since rank 1 has exited already\n" in end.err


def test_a_rank_fails_before_all_have_saved(clusterrun: Launcher) -> None:
    """An ordinary failure."""
    job = started(clusterrun, words=("1=fail",))

    job.signal(signal.SIGUSR1)
    end = job.ended()

    assert end.code == 3, end
    assert "clusterrun: rank 1 on " in end.err
    assert "suspended at" not in end.err


def test_a_restart_is_suspended_at_one_of_its_first_steps(clusterrun: Launcher) -> None:
    """The request is kept while the job restarts."""
    job = started(clusterrun, "--max-restarts", "1", words=("1=fail",))

    job.signal(signal.SIGTERM)
    end = job.ended()

    assert end.code == 75, end
    one, other = job.wait_for(SAVED.format(1), times=2)
    # Step 1 if a rank calls while the agents begin to hold.
    assert one == other in {"0", "1"}
    assert "clusterrun: restarting all workers (restart 1 of 1)\n" in end.err


def test_a_rank_fails_after_all_have_saved(clusterrun: Launcher) -> None:
    """The job is suspended, and the report names the rank."""
    job = started(clusterrun, words=("1=fail at exit",))

    job.signal(signal.SIGUSR1)
    end = job.ended()

    assert end.code == 75, end
    assert "\n  rank 1 had saved, and then ended with exit code 9" in end.err


def test_a_second_sigterm_ends_the_job_at_once(clusterrun: Launcher) -> None:
    """More than a second after the first, which one rank has not answered."""
    job = started(clusterrun, words=("1=hang",))

    job.signal(signal.SIGTERM)
    job.wait_for("all ranks save at step")
    time.sleep(1.1)
    job.signal(signal.SIGTERM)
    end = job.ended()

    assert end.code == 143, end
    assert "clusterrun: SIGTERM again: killing 2 workers; exit code 143\n" in end.err


def test_a_signal_during_the_start_waits_for_the_first_calls(clusterrun: Launcher) -> None:
    """All ranks save at their first step."""
    slow = RANKS_SAVE.replace(
        "step = 0\n", "print('starts', flush=True); time.sleep(0.5); step = 0\n"
    )
    job = clusterrun.script(slow, "--suspend-signal", "USR1", workers=2)
    job.wait_for("starts", times=2)

    job.signal(signal.SIGUSR1)
    end = job.ended()

    assert end.code == 75, end
    assert job.wait_for(SAVED.format(0), times=2) == ["0", "0"]
    assert "SIGUSR1: all ranks save at their first call of suspend.requested() and end" in end.err


def test_sigterm_before_the_first_call_ends_the_job(clusterrun: Launcher) -> None:
    """As in a script that never calls."""
    job = clusterrun.script(
        "import os, time; print(os.environ['RANK'], 'waits', flush=True); time.sleep(100)",
        workers=2,
    )
    job.wait_for("waits", times=2)

    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
