"""``--debug``: which worker waits for a debugger, and where."""

import socket
from contextlib import closing, suppress

from clusterrun.domain.facts import Fact
from clusterrun.domain.plan import NodePlan
from clusterrun.run.debugged_ranks import HOST, USUAL_PORT, with_debugger
from msgspec.structs import replace

from tests.agent.node_plans import plan_of


def second_node() -> NodePlan:
    """Return the plan of ranks 4 and 5 of 6."""
    plan = plan_of(2, first_rank=4)
    return replace(plan, world=replace(plan.world, size=6), arguments_at=len(plan.command))


def test_only_that_rank_waits() -> None:
    """It executes debugpy, which runs the program; the others execute the program itself."""
    plan, notice = with_debugger(second_node(), Fact(5, "--debug"))

    first, second = plan.workers
    command = plan.command_of(second)
    assert plan.command_of(first) == plan.command
    assert command[:2] == plan.command[:2]
    assert command[-len(plan.command[2:]) :] == plan.command[2:]
    assert command[command.index("-m") + 1] == "debugpy"
    assert notice.startswith(f"rank 5 on {plan.host} waits for a debugger on port ")


def test_a_rank_of_another_node() -> None:
    """Nothing waits here, and nothing is said."""
    plan = second_node()

    assert with_debugger(plan, Fact(3, "--debug")) == (plan, "")


def test_a_rank_that_the_job_does_not_have() -> None:
    """On several nodes this is known once they have joined."""
    plan = second_node()

    assert with_debugger(plan, Fact(7, "--debug")) == (
        plan,
        "--debug: there is no rank 7: no rank waits for a debugger",
    )


def test_a_port_in_use_is_replaced() -> None:
    """Whoever listens there: this test, or another program of this machine."""
    with closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            listener.bind((HOST, USUAL_PORT))
            listener.listen()

        _, notice = with_debugger(second_node(), Fact(4, "--debug"))

    assert f"port {USUAL_PORT} " not in notice
