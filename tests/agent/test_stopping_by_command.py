"""``clusterrun stop`` as an agent decides it: with a grace period, or at once on all nodes."""

import signal

import pytest
from msgspec.structs import replace

from tests.agent.door import (
    Action,
    Attempt,
    EndedExternally,
    Interrupted,
    LastLines,
    LookAtRanks,
    LookOrdered,
    Phase,
    PrintNotice,
    RelaySaw,
    SendToCoordinator,
    Stop,
    StopWanted,
    TakeLook,
)
from tests.agent.histories import GRACE, exited, hand_on, kill, ordered, sent, started, workers
from tests.agent.notices import (
    killing_at_once,
    killing_now,
    no_restart,
    stopping_by,
    stopping_others,
)
from tests.decided import decide

TERM = Interrupted(signal.SIGTERM)
BY = "clusterrun stop"


def stop(*, at_once: bool = False) -> StopWanted:
    return StopWanted(BY, at_once, at=10.0)


def running(**values: bool) -> Attempt:
    """Return two workers that run."""
    state = workers(2, **values)
    for local_rank in range(2):
        state, _ = decide(state, started(local_rank))
    return state


def report(*, at_once: bool = False) -> SendToCoordinator:
    return SendToCoordinator(EndedExternally(0, TERM, at_once))


def flat(*actions: Action | tuple[Action, ...]) -> tuple[Action, ...]:
    return tuple(
        each for action in actions for each in (action if isinstance(action, tuple) else (action,))
    )


def test_running_workers_are_asked_to_end() -> None:
    """As by SIGTERM: the grace period begins, and all nodes learn of it."""
    state, actions = decide(running(), stop())

    notice = PrintNotice(stopping_by(BY, 2, GRACE))
    assert actions == flat(report(), notice, hand_on(signal.SIGTERM, 0, 1))
    assert (state.phase, state.external_cause) == (Phase.STOPPING, TERM)


def test_a_second_command_changes_nothing() -> None:
    """Nor does it shorten the grace period."""
    state, _ = decide(running(), stop())

    assert decide(state, stop()) == (state, ())


@pytest.mark.parametrize("is_stopping", [False, True])
def test_now_kills_on_all_nodes(*, is_stopping: bool) -> None:
    """Also after a stop that has not ended the workers yet."""
    state = running()
    if is_stopping:
        state, _ = decide(state, stop())

    state, actions = decide(state, stop(at_once=True))

    assert actions == flat(report(at_once=True), PrintNotice(killing_now(BY, 2)), kill(0, 1))
    assert (state.phase, state.external_cause) == (Phase.KILLING, TERM)


def test_now_kills_on_other_nodes_if_all_have_ended_here() -> None:
    """Only the report follows."""
    state = replace(running(shared=True), phase=Phase.WAITING, running={})

    _, actions = decide(state, stop(at_once=True))

    assert actions == (report(at_once=True),)


def test_other_nodes_are_stopped_if_all_have_ended_here() -> None:
    """A node that waits for them has no workers of its own."""
    state = replace(running(shared=True), phase=Phase.WAITING, running={})

    state, actions = decide(state, stop())

    assert actions == (report(), PrintNotice(stopping_others(signal.SIGTERM)))
    assert decide(state, stop()) == (state, ())


def test_no_restart_follows_a_failure() -> None:
    """The job on one node waits for its next attempt."""
    state = replace(running(), phase=Phase.WAITING, running={})

    _, actions = decide(state, stop())

    assert actions == (report(), PrintNotice(no_restart(signal.SIGTERM)))


def test_a_stop_while_workers_end_is_reported() -> None:
    """After a failure it keeps the next attempt from starting."""
    state, _ = decide(running(), exited(1, 3))

    _, actions = decide(state, stop())

    assert actions == (report(),)


def test_an_order_to_stop_at_once_kills() -> None:
    """It came on another node; one that is late, or of another attempt, does nothing."""
    order = sent(Stop(0, "n1 received SIGTERM", TERM, at_once=True))
    stopping, _ = decide(running(shared=True), ordered("n1 received SIGTERM"))

    for state in (running(shared=True), stopping):
        killed, actions = decide(state, order)
        assert actions == flat(PrintNotice(killing_at_once("n1 received SIGTERM", 2)), kill(0, 1))
        assert decide(killed, order) == (killed, ())


def test_looks_change_nothing() -> None:
    """Whoever looks, and whenever."""
    state = running()
    for event in (LookOrdered(TakeLook(1, LookAtRanks()), 1.0), RelaySaw(1, LastLines({}), 1.0)):
        assert decide(state, event) == (state, ())
