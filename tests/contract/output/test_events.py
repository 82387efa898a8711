"""``--events FILE``: the job's events as lines of JSON, for programs."""

import os
import signal
from typing import Any

import pytest

from tests.contract.launched import Launcher, read_events

FAILS_ONCE = """
    import os, signal, sys
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        if os.environ["RANK"] == "1":
            sys.exit(3)
        signal.pause()
"""


def names(events: list[dict[str, Any]]) -> list[tuple[str, int, int | None]]:
    """Return name, attempt and rank of each event."""
    return [(event["event"], event["attempt"], event.get("rank")) for event in events]


def test_successful_job(clusterrun: Launcher) -> None:
    """The job and each rank have a line for the start and one for the end."""
    job = clusterrun.script("pass", "--events=events/%n.jsonl", "--run-id=digits", workers=2)

    assert job.ended() == (0, "", "")
    events = read_events(clusterrun.folder / "events/0.jsonl")
    assert names(events[:1]) == [("joined", 0, None)]
    assert sorted(names(events[1:-1]), key=str) == [
        ("exited", 0, 0),
        ("exited", 0, 1),
        ("started", 0, 0),
        ("started", 0, 1),
    ]
    assert (events[-1]["event"], events[-1]["code"]) == ("ended", 0)
    identities = {("digits", 0, os.uname().nodename)}
    assert {(event["run_id"], event["node_rank"], event["host"]) for event in events} == identities
    assert events == sorted(events, key=lambda event: float(event["time"]))


def test_failure_and_restart(clusterrun: Launcher) -> None:
    """The events of a second job are appended."""
    for _ in range(2):
        job = clusterrun.script(
            FAILS_ONCE, "--max-restarts=1", environ={"CLUSTERRUN_EVENTS": "events"}, workers=2
        )
        assert job.ended().code == 0

    events = read_events(clusterrun.folder / "events")
    half = len(events) // 2
    for of_job in (events[:half], events[half:]):
        (failed,) = [event for event in of_job if event["event"] == "failed"]
        assert (failed["rank"], failed["attempt"], failed["code"]) == (1, 0, 3)
        (again,) = [event for event in of_job if event["event"] == "restarted"]
        assert (again["attempt"], again["cause"]["rank"], again["cause"]["pid"]) == (
            1,
            1,
            failed["pid"],
        )
        assert [event["rank"] for event in of_job if event.get("stopped")] == [0]
        assert names(of_job)[-1] == ("ended", 1, None)


def test_signal_that_ends_the_job(clusterrun: Launcher) -> None:
    """The last line has its exit code."""
    text = "import signal; print('ready', flush=True); signal.pause()"
    job = clusterrun.script(text, "--events", "events", workers=2)
    job.wait_for("ready", 2)

    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    last = read_events(clusterrun.folder / "events")[-1]
    assert (last["event"], last["code"], last["reason"]) == ("ended", 143, "interrupted")


def test_unwritable_file_is_reported(clusterrun: Launcher) -> None:
    (clusterrun.folder / "file").touch()
    ended = clusterrun.script("pass", "--events=file/events", workers=2).ended()

    path = clusterrun.folder / "file/events"
    assert ended.code == 0
    assert ended.err == f"clusterrun: file {path}: File exists; clusterrun continues without it\n"


@pytest.mark.parametrize("ending", ["exits", "is signalled"])
def test_hanging_file_delays_nothing(impatient: Launcher, ending: str) -> None:
    """Opening a pipe without a reader hangs."""
    os.mkfifo(impatient.folder / "events")
    text = "import os, signal, sys; print('ready', flush=True); sys.argv[1:] and signal.pause()"
    args = ["wait"] if ending == "is signalled" else []
    job = impatient.script(text, "--events=events", workers=2, args=args)
    job.wait_for("ready", 2)

    if args:
        job.signal(signal.SIGTERM)

    assert job.ended(10).code == (143 if args else 0)
    assert job.left() == []
