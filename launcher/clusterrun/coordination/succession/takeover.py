"""A successor gathers the agents of a lost coordinator, and becomes their coordinator. Pure.

It begins as the lost one would go on between two attempts: all places are empty that no agent has
claimed. Agents that have not come are counted by numbers of their own, which are negative.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from clusterrun.coordination.coordinator_actions import Actions, Disconnect, Send
from clusterrun.coordination.coordinator_events import HelloReceived
from clusterrun.coordination.job_state import Attempt, JobPhase, JobState, Request
from clusterrun.coordination.lease import CoordinatorLease
from clusterrun.coordination.members import OWN, Members
from clusterrun.coordination.next_attempt import loss_notices, restarting
from clusterrun.coordination.terms import Terms
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import Hello, Refusal, Refused, Succession
from clusterrun.domain.outcome import NodeLost
from clusterrun.domain.succession import Claim, Place

_BEFORE = 1_000_000_000
"""Agents of the attempt before that have not come have numbers below minus this one."""


def taken_over(  # noqa: PLR0913 - what the successor knows
    terms: Terms,
    hello: Hello,
    known: Succession,
    lost: NodeLost,
    *,
    ended: Iterable[int],
    at: float,
    until: float,
) -> JobState:
    """Return the state of the coordinator that succeeds a lost one, as ``hello.claim`` says.

    Args:
        terms: those of this agent.
        hello: this agent's.
        known: what it knows of the attempt.
        lost: the lost coordinator.
        ended: node ranks whose agents are known to have ended.
        at: now.
        until: when to give up.

    """
    claim, progress = _claim_of(hello), known.progress
    places = {-1 - rank: _absent_hello(hello, place) for rank, place in enumerate(known.places)}
    state = JobState(
        terms=_terms_of_successor(terms, len(places)),
        has_token=True,
        master_port=0,
        began=at,
        members=Members(dict(places), {}),
        attempt=Attempt(known.attempt),
        lease=CoordinatorLease(terms.rhythm.timeout),
        next_notice=NEVER,
        phase=JobPhase.RESTARTING,
        previous=lost,
        ranks={each: -1 - each for each in places},
        roster=frozenset(-1 - number for number in range(known.agents)),
        roster_before=frozenset(-_BEFORE - number for number in range(known.agents_before)),
        departed={-1 - rank for rank in ended},
        lost_after_report={each: _missing(-1 - each, lost, known) for each in places},
        restarts=progress.restarts,
        losses=progress.losses,
        quick_restarts=progress.quick_restarts,
        faults={each.host: each for each in progress.faults},
        request=Request(progress.requested_by, at) if progress.requested_by else None,
        takes_over=known.coordinator,
        address=next(each.address for each in known.successors if each.identity == hello.identity),
        pause_ends=until,
    )
    _take_place(state, OWN, hello, claim, "")
    _expect_workers_of_the_lost(state, claim, at)
    return state


def claimed(state: JobState, newcomer: HelloReceived, claim: Claim) -> Actions:
    """Let an agent of the lost coordinator follow this one, unless the job has gone on already."""
    number, hello = newcomer.connection, newcomer.hello
    lost_the_same = (claim.coordinator, claim.attempt) == (state.takes_over, state.attempt.number)
    is_free = claim.node_rank is None or _is_free(state, claim.node_rank)
    if state.phase is not JobPhase.RESTARTING or not lost_the_same or not is_free:
        refused = Refused(Refusal.GIVE_UP, loss_notices.WENT_ON, "")
        return (Send((number,), refused), Disconnect((number,)))
    _take_place(state, number, hello, claim, newcomer.address)
    _expect_workers_of_the_lost(state, claim, newcomer.at)
    return restarting.gather(state, newcomer.at)


def _claim_of(hello: Hello) -> Claim:
    if hello.claim is None:
        raise AssertionError("a successor has lost a coordinator")
    return hello.claim


def _terms_of_successor(terms: Terms, nodes: int) -> Terms:
    # Newcomers look for the job where the lost coordinator was: none will come.
    return replace(terms, nodes=nodes, reforming=replace(terms.reforming, rejoin_timeout=0.0))


def _absent_hello(own: Hello, place: Place) -> Hello:
    return replace(
        own,
        identity="",
        host=place.host,
        rank=None,
        workers=place.workers,
        role=place.role,
        standby=None,
        claim=None,
    )


def _missing(rank: int, lost: NodeLost, known: Succession) -> NodeLost:
    if rank == lost.node_rank:
        return lost
    return NodeLost(rank, known.places[rank].host, "has not come to the successor of node 0")


def _is_free(state: JobState, rank: int) -> bool:
    return -1 - rank in state.ranks


def _take_place(state: JobState, number: int, hello: Hello, claim: Claim, address: str) -> None:
    absent = _number_of_absent(state, claim)
    state.roster = (state.roster - {absent}) | {number}
    first_before = min(state.roster_before, default=0)
    if claim.since < claim.attempt and first_before <= -_BEFORE:
        state.roster_before = (state.roster_before - {first_before}) | {number}
    state.members.add(number, hello, address, takes_rank=False)
    if claim.knows_attempts:
        state.placed.add(number)
    if claim.node_rank is None:
        state.waiting.append(number)
        return
    state.ranks = {(number if each == absent else each): r for each, r in state.ranks.items()}
    state.members.remove(absent)
    del state.lost_after_report[absent]
    state.departed.discard(absent)


def _expect_workers_of_the_lost(state: JobState, claim: Claim, at: float) -> None:
    """Begin no attempt while a lease may run that rests on what this agent has received."""
    last = at - claim.age + state.terms.rhythm.timeout
    state.leases_end = max(state.leases_end, last)


def _number_of_absent(state: JobState, claim: Claim) -> int:
    """Return the number for which an agent has been counted until now."""
    if claim.node_rank is not None:
        return -1 - claim.node_rank
    return min(each for each in state.roster if each < 0)
