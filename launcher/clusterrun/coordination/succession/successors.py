"""What the coordinator lets its agents know, so that one of them can succeed it. Pure."""

from collections.abc import Iterator

from msgspec.structs import replace

from clusterrun.coordination.coordinator_actions import Actions, Send
from clusterrun.coordination.job_state import JobPhase, JobState
from clusterrun.coordination.members import OWN
from clusterrun.domain.messages import Succession
from clusterrun.domain.succession import Place, Progress, Successor

MOST_SUCCESSORS = 3


def inform(state: JobState) -> Actions:
    """Let all agents of the attempt know who may succeed the coordinator; they confirm it."""
    if not state.terms.reforming.fails_over or state.phase is not JobPhase.RUNNING:
        return ()
    found = dict(_successors(state))
    hellos = state.members.hellos
    others = tuple(each for each in state.roster if each in hellos and each not in {OWN, *found})
    places = tuple(_place(state, each) for each in state.ranks)
    state.unaware = {*found, *others}
    known = _succession(state, tuple(found.values()))
    for_successors = replace(known, places=places, progress=_progress(state))
    return tuple(
        Send(receivers, message)
        for receivers, message in ((tuple(found), for_successors), (others, known))
        if receivers
    )


def _succession(state: JobState, successors: tuple[Successor, ...]) -> Succession:
    return Succession(
        attempt=state.attempt.number,
        coordinator=state.own_hello.identity,
        host=state.own_hello.host,
        node_rank=state.ranks.get(OWN, 0),
        agents=len(state.roster),
        agents_before=len(state.roster_before),
        successors=successors,
    )


def _successors(state: JobState) -> Iterator[tuple[int, Successor]]:
    """Yield the first agents by rank, by connection, that all nodes can reach."""
    addresses = {each: state.members.address(each) for each in state.ranks if each != OWN}
    all_are_here = all(_is_loopback(address) for address in addresses.values())
    count = 0
    for each, address in addresses.items():
        hello, is_reached = state.members.hellos[each], all_are_here or not _is_loopback(address)
        if hello.standby is not None and is_reached and count < MOST_SUCCESSORS:
            count += 1
            rank = state.ranks[each]
            yield each, Successor(hello.identity, rank, address, hello.standby.port)


def _is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def _place(state: JobState, connection: int) -> Place:
    hello = state.members.hellos[connection]
    return Place(hello.host, hello.workers, hello.role)


def _progress(state: JobState) -> Progress:
    by = state.request.by if state.request else ""
    faults = tuple(state.faults.values())
    return Progress(state.restarts, state.losses, state.quick_restarts, by, faults)
