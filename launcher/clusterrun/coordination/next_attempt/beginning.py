"""How an attempt begins: who has which place, what all are sent, what is forgotten of the last one."""

from collections.abc import Collection, Iterator, Mapping

from msgspec.structs import replace

from clusterrun.coordination import job_notices
from clusterrun.coordination.coordinator_actions import Actions, Disconnect, Send
from clusterrun.coordination.job_state import Attempt, JobPhase, JobState
from clusterrun.coordination.members import OWN
from clusterrun.coordination.next_attempt import bad_nodes, loss_notices
from clusterrun.coordination.next_attempt.bad_nodes import next_ranks
from clusterrun.coordination.next_attempt.job_progress import count_losses
from clusterrun.coordination.succession import successors
from clusterrun.coordination.worlds import worlds
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import NextAttempt, Notice, Verdict, WorldFormed
from clusterrun.domain.outcome import NodeLost
from clusterrun.domain.world import World


def enter(state: JobState, parts: Mapping[int, World]) -> None:
    """Take note that an attempt begins, in which the members have these ``parts``, in order."""
    hellos = state.members.hellos
    state.terms = replace(state.terms, nodes=len(parts))
    state.takes_over = ""
    state.phase = JobPhase.RUNNING
    state.ranks = {each: world.node_rank for each, world in parts.items()}
    state.first_ranks = {each: world.first_rank for each, world in parts.items()}
    state.hosts = job_notices.listed(hello.host for hello in hellos.values())
    state.placed.update(parts)
    state.roster = frozenset(hellos)


def begin(state: JobState, port: int) -> Actions:
    """Begin the next attempt on all nodes; its workers meet at ``port``."""
    why, ranks = state.previous, next_ranks(state)
    if why is None or ranks is None:
        raise AssertionError("an attempt follows one that has failed, and all its places are taken")
    number, before, lost = state.attempt.number + 1, state.placed.copy(), state.lost
    left_out = [each for each in state.ranks if each not in ranks and each not in lost]
    progress = count_losses(state, ranks, left_out)
    parts = worlds(state.terms, state.members.hellos, ranks, number, port)
    parts = _meeting_at_first(state, parts)
    farewells = tuple(_farewells(state))
    if state.terms.reforming.fails_over:
        state.roster_before = state.roster - state.departed
    _forget(state, lost)
    state.waiting = [*left_out, *(each for each in state.waiting if each not in ranks)]
    state.attempt = Attempt(number)
    state.next_notice = state.pause_ends = state.rejoin_ends = state.grows_at = NEVER
    enter(state, parts)
    host = state.own_hello.host
    orders = tuple(
        Send(
            (each,),
            NextAttempt(part, why, progress) if each in before else WorldFormed(part, host),
        )
        for each, part in parts.items()
    )
    # First, so that no agent begins an attempt without knowing who succeeds this coordinator.
    known = successors.inform(state)
    return (*farewells, *known, *orders, *_why_left_out(state, left_out))


def _why_left_out(state: JobState, left_out: Collection[int]) -> Iterator[Send]:
    """Tell members that worked, and wait in the next attempt, why."""
    bad = bad_nodes.bad_members(state).intersection(left_out)
    if bad:
        yield Send(tuple(bad), Notice(loss_notices.NOT_TRUSTED))
    if others := tuple(each for each in left_out if each not in bad):
        yield Send(others, Notice(loss_notices.waits_for_a_multiple(state)))


def _meeting_at_first(state: JobState, parts: dict[int, World]) -> dict[int, World]:
    """Return the parts with the address of rank 0, if that may not be the lost node 0's."""
    first = next(iter(parts))
    hello = state.members.hellos[first]
    if first != OWN and hello.standby is not None:
        at, port = state.members.address(first), hello.standby.workers_port
        return {
            each: replace(part, master_addr=at, master_port=port) for each, part in parts.items()
        }
    if state.address:
        return {each: replace(part, master_addr=state.address) for each, part in parts.items()}
    return parts


def _farewells(state: JobState) -> Iterator[Send | Disconnect]:
    """Yield the verdict for silent nodes, which may continue and find it."""
    for each in state.silent:
        why = state.lost[each]
        yield Send((each,), Verdict(why, loss_notices.WENT_ON))
    if state.silent:
        yield Disconnect(tuple(state.silent))


def _forget(state: JobState, lost: Mapping[int, NodeLost]) -> None:
    """Remove the lost members."""
    for each in lost:
        state.members.remove(each)
        state.lease.forget(each)
        state.placed.discard(each)
        state.paused.discard(each)
    state.lost_before_report, state.lost_after_report = {}, {}
    state.silent, state.departed = set(), set()
    state.lost_at = NEVER
    state.leases_end = 0.0
