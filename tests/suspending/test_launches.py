"""Jobs that are suspended, or are not: the rows of the table in docs/suspend.md."""

import signal

import pytest

from tests.contract.launched import Job, Launcher, read_events

RANKS_SAVE = """
    import atexit, os, sys, time
    from clusterrun import suspend

    rank = int(os.environ["RANK"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    action = dict(word.split("=") for word in sys.argv[1:]).get(str(rank), "")
    atexit.register(lambda: print(f"rank {rank} cleans up", flush=True))
    step = 0
    while True:
        if action == "silent":
            print(f"rank {rank} is ready", flush=True)
            time.sleep(100)
        is_requested = suspend.requested(step)
        if step == 20:
            # The agent knows by now that this rank calls.
            print(f"rank {rank} is ready", flush=True)
        if is_requested:
            print(f"rank {rank} saves step {step} of attempt {attempt}", flush=True)
            open(f"rank-{rank}-saves", "w").close()
            if action == "hang":
                time.sleep(100)
            if action == "fail" and attempt == "0":
                sys.exit(3)
            if action == "exit":
                # There is no suspension if this rank ends before the request reaches the other.
                while not os.path.exists("rank-0-saves"):
                    time.sleep(0.01)
                sys.exit(0)
            if action == "fail at exit":
                atexit.register(os._exit, 9)
            suspend.ready()
            print(f"rank {rank} continues", flush=True)
            break
        step += 1
        time.sleep(0.005 * (1 + rank))
"""

SAVED = r"rank \d saves step (\d+) of attempt {}\n"


def start_job(clusterrun: Launcher, *options: str, words: tuple[str, ...] = ()) -> Job:
    """Start two ranks; return when both have made some steps."""
    job = clusterrun.script(RANKS_SAVE, *options, "--suspend-signal", "USR1", workers=2, args=words)
    job.wait_for(r"rank \d is ready\n", times=2)
    return job


@pytest.mark.parametrize(
    ("number", "name"),
    [(signal.SIGTERM, "SIGTERM"), pytest.param(signal.SIGUSR1, "SIGUSR1", marks=pytest.mark.long)],
)
def test_all_ranks_save_at_one_step(
    number: int, name: str, clusterrun: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event log and the last line have the request, the step and the time."""
    scratch = clusterrun.folder / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    code = 75 if number == signal.SIGTERM else 99
    job = start_job(clusterrun, "--events=events", f"--suspend-exit-code={code}")

    job.signal(number)
    end = job.ended()

    [step] = {*job.wait_for(SAVED.format(0), times=2)}
    assert end.code == code, end
    assert end.out.count(" cleans up\n") == 2
    assert f"{name}: all ranks save at step {step} and end (--suspend-grace 30 s)\n" in end.err
    assert f"clusterrun: exit code {code}: suspended at step {step}, " in end.err
    assert end.err.endswith(f" s after {name}\n")
    assert job.left() == []
    assert list(scratch.iterdir()) == []
    events = read_events(clusterrun.folder / "events")
    saving = [event for event in events if event["event"] == "saving"]
    assert [(event["save_step"], event["attempt"]) for event in saving] == [(int(step), 0)]
    last = events[-1]
    assert (last["reason"], last["code"]) == ("suspended", code)
    assert (last["by"], last["save_step"]) == (name, int(step))
    assert last["seconds"] < 30


def test_suspension_fails_if_a_rank_hangs(clusterrun: Launcher) -> None:
    """It is in the report; the rank that has saved exits normally."""
    job = start_job(clusterrun, "--suspend-grace", "0.5", words=("1=hang",))

    job.signal(signal.SIGUSR1)
    end = job.ended()

    assert end.code == 7, end
    late = "clusterrun: error: not suspended: rank 1 had not saved 0.5 s (--suspend-grace) after"
    assert late in end.err
    assert end.err.endswith("clusterrun: exit code 7: not all ranks saved in time after SIGUSR1\n")
    assert "rank 0 cleans up\n" in end.out
    assert job.left() == []


EXITED = "not suspended, since rank 1 has exited already\n"


@pytest.mark.parametrize(
    ("action", "number", "code", "text"),
    [
        pytest.param("exit", signal.SIGUSR1, 0, EXITED, marks=pytest.mark.long),
        ("exit", signal.SIGTERM, 143, EXITED),
        pytest.param("fail", signal.SIGUSR1, 3, "clusterrun: rank 1 on ", marks=pytest.mark.long),
        (
            "fail at exit",
            signal.SIGUSR1,
            75,
            "\n  rank 1 had saved, and then ended with exit code 9",
        ),
        pytest.param(
            *("silent", signal.SIGTERM, 75, "\n  rank 1 never called suspend.requested()\n"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_rank_that_ends_or_never_calls(
    action: str, number: int, code: int, text: str, clusterrun: Launcher
) -> None:
    """Only a rank that has saved, or has never called, does not prevent the suspension."""
    job = start_job(clusterrun, words=(f"1={action}",))

    job.signal(number)
    end = job.ended()

    assert end.code == code, end
    assert text in end.err
    assert ("suspended at" in end.err) == (code == 75)


def test_restarted_job_is_suspended_at_one_of_its_first_steps(clusterrun: Launcher) -> None:
    job = start_job(clusterrun, "--max-restarts", "1", words=("1=fail",))

    job.signal(signal.SIGTERM)
    end = job.ended()

    assert end.code == 75, end
    one, other = job.wait_for(SAVED.format(1), times=2)
    # Step 1 if a rank calls while the agents begin to hold.
    assert one == other in {"0", "1"}
    assert "clusterrun: restarting all workers (restart 1 of 1)\n" in end.err


def test_request_before_the_first_calls_suspends_at_the_first_step(clusterrun: Launcher) -> None:
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
