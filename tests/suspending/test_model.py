"""Every order in which ranks, agents and messages can meet while a step is agreed on."""

import pytest

from tests.suspending.door import (
    GiveUp,
    Succeed,
)
from tests.suspending.model import Death, Doing, Model, State

WAITING = {Doing.WAIT, Doing.LEAVE}


def explore(model: Model) -> tuple[int, set[str]]:
    """Visit all states; return how many there are, and how the jobs end."""
    first = model.first()
    seen, to_visit, ends = {model.key(first)}, [first], set[str]()
    while to_visit:
        state = to_visit.pop()
        check_steps(model, state)
        if state.end is not None:
            ends.add(check_end(model, state))
            continue
        following = list(model.next_states(state))
        accidents = list(model.accidents(state))
        if not following:
            ends.add(check_rest(model, state, accidents))
        for each in (*following, *accidents):
            if (key := model.key(each)) not in seen:
                seen.add(key)
                to_visit.append(each)
    return len(seen), ends


def check_steps(model: Model, state: State) -> None:
    """No two ranks stop at different steps."""
    steps = {rank.stopped_at for rank in model.ranks(state) if rank.stopped_at >= 0}

    assert len(steps) <= 1, state


def check_end(model: Model, state: State) -> str:
    """Return why the coordinator stops the attempt; a suspension means that all have saved."""
    match state.end:
        case Succeed(mark, silent):
            pages = [model.node(number).page for number in state.nodes]
            saved = [has_saved for page in pages for has_saved in page.saved]
            unsaved = {rank for rank, has_saved in enumerate(saved) if not has_saved}
            assert unsaved <= {*silent}, state
            assert {rank.stopped_at for rank in model.ranks(state)} <= {-1, mark - 1}, state
            return "suspended"
        case GiveUp():
            return "too late"
        case _:
            return "failed"


def check_rest(model: Model, state: State, accidents: list[State]) -> str:
    """Return how a job stands still: no rank waits, unless the end of the grace will end it."""
    doing = {rank.doing for rank in model.ranks(state)}
    will_end = any(isinstance(each.end, Succeed | GiveUp) for each in accidents)

    assert not doing & WAITING or will_end, state
    if will_end:
        return "the grace runs"
    return "a rank hangs" if Doing.HANG in doing else "all end"


def test_two_ranks_on_two_nodes() -> None:
    """A small world, in which a rank may end or fail, or be lost with its node."""
    _, ends = explore(Model((1, 1), 2, {Death.FAILS, Death.LEAVES, Death.LOST}))

    assert ends == {"suspended", "too late", "all end", "failed"}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("death", [None, *Death])
def test_three_ranks_on_two_nodes(death: Death | None) -> None:
    """Four steps, one request and one death, in all orders."""
    _, ends = explore(Model((2, 1), 4, () if death is None else (death,)))

    assert {"suspended", "too late", "all end"} <= ends
    assert ("failed" in ends) == (death in {Death.FAILS, Death.LOST})
    assert ("the grace runs" in ends) == (death is Death.HANGS)
