"""Which workers execute a debugger or a profiler, and where those are found."""

import socket
from contextlib import closing
from pathlib import Path

import pytest
from free_ports import free_port
from msgspec.structs import replace

from tests.plans import job, plan_of
from tests.run.door import (
    HOST,
    NodePlan,
    RankSet,
    WorkerPlan,
    debugging,
    with_wrappers,
)


@pytest.fixture(autouse=True)
def usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave debugpy's usual port to the jobs of other tests, which may be about to listen at it."""
    monkeypatch.setattr(debugging, "USUAL_PORT", free_port())


def second_node() -> NodePlan:
    """Return the plan of ranks 4 and 5 of 6."""
    plan = plan_of(2, first_rank=4)
    return replace(plan, world=replace(plan.world, size=6), arguments_at=len(plan.command))


def profile(_plan: NodePlan, worker: WorkerPlan) -> Path:
    return Path(f"/logs/{worker.rank}")


def test_a_rank_of_another_node() -> None:
    """Nothing waits here, and nothing is said."""
    plan = second_node()

    assert with_wrappers(plan, job(debug=3), profile) == (plan, "")


def test_a_rank_that_the_job_does_not_have() -> None:
    """On several nodes this is known once they have joined."""
    plan = second_node()

    assert with_wrappers(plan, job(debug=7), profile) == (
        plan,
        "the test: there is no rank 7: no rank waits for a debugger",
    )


def test_a_port_in_use_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual one may be another program's."""
    with closing(socket.create_server((HOST, 0))) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(debugging, "USUAL_PORT", taken)

        _, notice = with_wrappers(second_node(), job(debug=4), profile)

    assert f"port {taken} " not in notice
    assert " waits for a debugger on port " in notice


def test_profiled_ranks() -> None:
    """Each has a file of its own; ranks that do not exist are named if there is no other."""
    plan, notice = with_wrappers(second_node(), job(profile=RankSet(((5, 9),))), profile)

    first, second = plan.workers
    assert (first.wrapper, notice) == ((), "")
    assert (Path(second.wrapper[0]).name, second.wrapper[1]) == ("profiled.py", "/logs/5")
    interpreter, script = plan.command_of(first)[:2], plan.command_of(first)[2:]
    assert plan.command_of(second) == (*interpreter, *second.wrapper, *script)
    assert with_wrappers(second_node(), job(profile=RankSet(((6, 9),))), profile) == (
        second_node(),
        "the test: there is no rank 6-9: no profile is written",
    )
