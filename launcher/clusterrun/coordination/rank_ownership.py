"""Whether a member speaks of its own workers alone. Pure."""

from typing import assert_never

from clusterrun.coordination.messages import Done, EndedExternally, Failing, Stacks
from clusterrun.coordination.state import State


def is_about_its_own(
    state: State, connection: int, message: Failing | EndedExternally | Done | Stacks
) -> bool:
    """Return whether each rank that a member of a running job names is one of its workers."""
    first = state.first_ranks[connection]
    own = range(first, first + state.members[connection].workers)
    return all(rank in own for rank in _ranks(message))


def _ranks(message: Failing | EndedExternally | Done | Stacks) -> tuple[int, ...]:
    match message:
        case Failing(_, fate):
            return (fate.rank,)
        case Done(_, fates):
            return tuple(each.fate.rank for each in fates)
        case Stacks(_, _, groups):
            return tuple(rank for group in groups for rank in group.ranks)
        case EndedExternally():
            return ()
        case _:
            assert_never(message)
