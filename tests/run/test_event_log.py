"""The lines of ``--events``: each change of the policy's state, once."""

import json
import signal
from typing import Any, get_args

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.policy.events import CoordinatorLost, Event, WorkerEnded, WorkerStarted
from clusterrun.policy.messages import SaveAt
from clusterrun.policy.node import Attempt
from clusterrun.policy.outcome import (
    Exited,
    Hung,
    NodeLost,
    NotStarted,
    NotSuspended,
    Outcome,
    Reason,
    Replacement,
    RestartProgress,
    Succeeded,
    Suspended,
    WorkerFailed,
)
from clusterrun.run.event_log import REASON_NAMES, EventLog
from msgspec.structs import replace

from tests.network.nodes import result
from tests.plans import job, plan_of
from tests.run.attempt_events import (
    FORK_SERVER_LOST,
    cleaned_up,
    exited,
    killed,
    printed,
    sent,
    signal_received,
    started,
    verdict,
)

PLAN = plan_of(2, first_rank=4)
OF_THIS_NODE = {"run_id": "run", "attempt": 0, "node_rank": 0, "host": "node7"}


def workers(count: int) -> Attempt:
    """Return an attempt whose workers have been asked for."""
    plan = plan_of(count, first_rank=4)
    return Attempt(job(), replace(plan, world=replace(plan.world, nodes=2)), foreground=False)


class Lines:
    """What an event log writes."""

    def __init__(self) -> None:
        """Begin with none, 50 s after the start of a machine that started at 1000."""
        self.written: list[dict[str, Any]] = []
        self.log = EventLog(self._take, lambda: 50.0, 1000.0)

    def _take(self, node_rank: int, line: str) -> None:
        assert "\n" not in line
        self.written.append({"to": node_rank, **json.loads(line)})


def written(state: Attempt, *events: Event) -> list[str]:
    """Return what is new after each of these, without what all lines say of this node."""
    lines = Lines()
    for event in events:
        state.handle(event)
        lines.log.record_changes(state, event.at)
    of_all = {**OF_THIS_NODE, "to": 0}
    return [
        " ".join(
            f"{name}={it}"
            for name, it in line.items()
            if name != "time" and it != of_all.get(name, ...)
        )
        for line in lines.written
    ]


FAILS = WorkerEnded(LocalRank(0), Exited(3), at=10.0, since_failure=2.5)
CANNOT_START = WorkerEnded(LocalRank(0), NotStarted("execute \udcff", "Permission denied"), at=1.0)
NODE_3_LOST = verdict(NodeLost(3, "node9", "has been silent for 15 s"))
NODE_0_LOST = CoordinatorLost(NodeLost(0, "node0"), at=10.0)
STARTED = ["event=started rank=4 local_rank=0 pid=100", "event=started rank=5 local_rank=1 pid=101"]
KILLED = "event=exited rank=4 local_rank=0 pid=100 signal=9 stopped=True ran_for=9.0"


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        pytest.param(
            [started(0), started(1), exited(1), exited(0), cleaned_up()],
            [
                *STARTED,
                "event=exited rank=5 local_rank=1 pid=101 code=0 ran_for=9.0",
                "event=exited rank=4 local_rank=0 pid=100 code=0 ran_for=9.0",
            ],
            id="two workers exit",
        ),
        pytest.param(
            [started(0), started(1), FAILS, killed(1, signal.SIGTERM)],
            [
                *STARTED,
                "event=failed rank=4 local_rank=0 pid=100 code=3 age=2.5 ran_for=9.0",
                "event=exited rank=5 local_rank=1 pid=101 signal=15 stopped=True ran_for=9.0",
            ],
            id="one fails some time before it exits and the other is stopped",
        ),
        pytest.param(
            [CANNOT_START],
            ["event=failed rank=4 local_rank=0 step=execute ? error=Permission denied"],
            id="a path in the step is not valid text",
        ),
        pytest.param(
            [started(0), FORK_SERVER_LOST, printed(0)],
            [STARTED[0], "event=lost what=fork server how=was killed by SIGKILL", KILLED],
            id="the fork server is lost with its worker",
        ),
        pytest.param(
            [started(0), sent(SaveAt(0, 5))],
            [STARTED[0], "event=saving save_step=4"],
            id="the step of a suspension is known",
        ),
        pytest.param(
            [started(0), NODE_3_LOST, signal_received(2)],
            [
                STARTED[0],
                "event=lost node_rank=3 host=node9 what=node how=has been silent for 15 s",
            ],
            id="a verdict names a lost node once",
        ),
        pytest.param(
            [started(0), NODE_0_LOST, signal_received(2)],
            [STARTED[0], "event=lost host=node0 what=node how=is gone"],
            id="node 0 is lost once",
        ),
    ],
)
def test_change_is_recorded(events: list[Event], lines: list[str]) -> None:
    ranks = max((it.local_rank for it in events if isinstance(it, WorkerStarted)), default=0)

    assert written(workers(ranks + 1), *events) == lines


def test_hang_is_recorded() -> None:
    """As the reason of the end."""
    lines = Lines()
    lines.log.attempt_started(PLAN)

    lines.log.job_ended(Outcome(Hung(60.0, (1,), ""), 0, (), ()))

    assert (lines.written[-1]["reason"], lines.written[-1]["code"]) == ("hung", 7)


def test_suspension_is_recorded() -> None:
    """At the end with all details of the report."""
    lines = Lines()
    lines.log.attempt_started(PLAN)

    lines.log.job_ended(Outcome(Suspended("USR1 on n1", 4, 1.2345, 75), 0, (), ()))
    lines.log.job_ended(Outcome(NotSuspended("USR1", 4, 30.0, (1,), (2,)), 0, (), ()))

    names = ("reason", "code", "by", "save_step", "seconds", "unsaved", "silent")
    suspended, late = ([each.get(name) for name in names] for each in lines.written[1:])
    assert suspended[:5] == ["suspended", 75, "USR1 on n1", 4, 1.234]
    assert late == ["not suspended", 7, "USR1", 4, 30.0, [1], [2]]


def test_joining_restart_and_end_are_recorded() -> None:
    """The records of the job have the reason and its cause."""
    lines = Lines()
    cause = result(1, 3, host="node9", pid=77)
    failed = WorkerFailed(cause)
    lines.log.attempt_started(PLAN)
    lines.log.attempt_failed(Outcome(failed, 0, (), ()))
    lines.log.attempt_started(plan_of(2, attempt=1))
    lines.log.job_ended(Outcome(Succeeded(), 1, (), ()))

    why = {"reason": "worker failed", "cause": {"rank": 1, "host": "node9", "pid": 77, "code": 3}}
    everywhere = {"to": 0, "time": 1050.0, **OF_THIS_NODE}
    assert lines.written == [
        {**everywhere, "event": "joined", "nodes": 1, "workers": 2},
        {**everywhere, "event": "restarted", "attempt": 1, **why},
        {**everywhere, "event": "ended", "attempt": 1, "code": 0, "reason": "succeeded"},
    ]


def test_end_has_the_details_of_the_report() -> None:
    """The exception, why there is no restart, and processes that could not be killed."""
    traceback = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: boom\n'
    )
    cause = result(1, 3, tail=traceback)
    left = ("pid 12 (python, state D in nfs_wait)",)
    lines = Lines()

    lines.log.attempt_started(PLAN)
    lines.log.job_ended(
        Outcome(WorkerFailed(cause), 0, (), left, no_restart="it failed alike twice")
    )

    ended = lines.written[-1]
    assert ended["cause"]["exception"] == "ValueError: boom"
    assert ended["not_restarted"] == "it failed alike twice"
    assert ended["survivors"] == list(left)


def test_replaced_node_is_recorded_with_its_successor() -> None:
    """Before the attempt in which it was replaced."""
    lines, lost = Lines(), NodeLost(1, "node9")
    lines.log.attempt_started(PLAN)
    progress = RestartProgress(losses=1, replacements=(Replacement(lost, "node7"),))
    lines.log.attempt_failed(Outcome(lost, 0, (), (), progress=progress))
    lines.log.attempt_started(plan_of(2, attempt=1))

    replaced, restarted = lines.written[1:]
    assert (replaced["event"], replaced["node_rank"], replaced["host"]) == ("replaced", 1, "node9")
    assert (replaced["by"], replaced["how"]) == ("node7", "is gone")
    assert (restarted["event"], restarted["reason"]) == ("restarted", "node lost")


def test_every_reason_has_a_name() -> None:
    """This includes reasons that are added later."""
    assert REASON_NAMES.keys() == set(get_args(Reason))


def test_node_that_rejoins_has_joined() -> None:
    """The failure of an attempt before it was lost is not recorded again."""
    lines = Lines()
    lines.log.attempt_started(PLAN)
    lines.log.attempt_failed(Outcome(WorkerFailed(result(1, 3)), 0, (), ()))

    for attempt in (1, 2):
        lines.log.attempt_started(plan_of(2, attempt=attempt))

    assert [line["event"] for line in lines.written] == ["joined", "restarted", "joined"]
