"""Agents that still call from an earlier start of the job, whose node has been started again. Pure.

A member that never reached node 0 knows nothing of its end, and goes on calling until its time is
over. It would be one node too many in the job that its user starts instead.
"""

from collections.abc import Iterable

from clusterrun.coordination.state import OWN, Introduced, State

SECONDS_BETWEEN_STARTS = 5.0
"""Agents that began to call within this time may belong to one start."""


def leftover(state: State, newcomer: Introduced) -> int | None:
    """Return the connection of the leftover among ``newcomer`` and those that have its place.

    It runs on the same host, by its name and by the address that it calls from, and began to call
    well before this node 0 was there, and well before the other one. None if there is none: then
    the two contradict each other.
    """
    # Who is not early may have begun with node 0.
    started = min(started_at(newcomer), state.began)
    for rival in _rivals(state, newcomer):
        ahead = started - state.early.get(rival, state.began)
        if abs(ahead) > SECONDS_BETWEEN_STARTS:
            return rival if ahead > 0 else newcomer.connection
    return None


def is_early(state: State, started: float) -> bool:
    """Tell whether an agent that ``started`` then did so well before this node 0."""
    return started < state.began - SECONDS_BETWEEN_STARTS


def started_at(newcomer: Introduced) -> float:
    """Return when a newcomer began to call, by our clock."""
    return newcomer.at - newcomer.hello.waited


def _rivals(state: State, newcomer: Introduced) -> Iterable[int]:
    hello = newcomer.hello
    # Most have a rank, which finds its holder at once in a large job.
    has_place = (state.claims.get(hello.rank),) if hello.rank is not None else state.members
    return (
        each
        for each in has_place
        if each is not None
        and each != OWN
        # A stranger can say any name.
        and (state.peers[each], state.members[each].host) == (newcomer.peer, hello.host)
    )
