"""Nodes join: the coordinator admits or refuses each, and begins when all have joined."""

from clusterrun.coordination import job_notices
from clusterrun.coordination.admission import Contradiction, Rejection, first_difference, objection
from clusterrun.coordination.coordinator_actions import (
    Action,
    Actions,
    Disconnect,
    PrintOnNodeZero,
    Send,
    StopListening,
)
from clusterrun.coordination.coordinator_events import HelloReceived
from clusterrun.coordination.job_state import JobPhase, JobState
from clusterrun.coordination.members import OWN
from clusterrun.coordination.next_attempt import beginning, loss_notices, restarting
from clusterrun.coordination.next_attempt.places import elastic_size
from clusterrun.coordination.stale_agents import is_early, leftover, started_at
from clusterrun.coordination.succession import successors, takeover
from clusterrun.coordination.worlds import node_ranks, worlds
from clusterrun.domain.event_source import NEVER
from clusterrun.domain.messages import Hello, KeepWaiting, Refusal, Refused, WorldFormed

SECONDS_TO_SETTLE = 0.2
"""How long a complete world waits for callers without a ``Hello``: one node too many should be
found before the workers start."""

MOST_REFUSALS_PRINTED = 16
"""Lines on node 0; a port scanner gets no more."""


def hello_received(state: JobState, newcomer: HelloReceived) -> Actions:
    """Let a caller join, refuse it, or end the job because of it."""
    if newcomer.hello.claim is not None:
        return takeover.claimed(state, newcomer, newcomer.hello.claim)
    former = state.members.of_agent(newcomer.hello.identity)
    if state.phase is not JobPhase.GATHERING or former is None:
        return _judge(state, newcomer)
    if newcomer.connection < former:
        # An older connection of the same agent, whose Hello was delayed.
        return (Disconnect((newcomer.connection,)),)
    notice = remove(state, former, "has connected again", newcomer.at)
    return (Disconnect((former,)), notice, *_judge(state, newcomer))


def _judge(state: JobState, newcomer: HelloReceived) -> Actions:
    match objection(state, newcomer.hello):
        case Rejection() as rejection:
            return _refuse(state, newcomer, rejection)
        case Contradiction() as contradiction if state.phase is not JobPhase.GATHERING:
            return _refuse(state, newcomer, contradiction.rejection)
        case Contradiction() as contradiction:
            left_over = leftover(state, newcomer)
            if left_over is not None:
                return _refuse_leftover(state, left_over, newcomer)
            if state.has_token:
                return _end(state, contradiction, (newcomer.connection,))
            # Anyone who reaches the port could contradict: that must not end the job.
            return _refuse(state, newcomer, contradiction.rejection)
    if state.phase is not JobPhase.GATHERING:
        return restarting.newcomer_joins(state, newcomer)
    return _admit(state, newcomer)


def _refuse_leftover(state: JobState, left_over: int, newcomer: HelloReceived) -> Actions:
    """Refuse the one of two agents of a host that is left over from an earlier start."""
    if left_over == newcomer.connection:
        why = Rejection(Refusal.GIVE_UP, job_notices.REPLACED, "", job_notices.IS_REPLACED)
        return _refuse(state, newcomer, why)
    refused = Refused(Refusal.GIVE_UP, job_notices.REPLACED, "")
    notice = remove(state, left_over, f"is refused: {job_notices.IS_REPLACED}", newcomer.at)
    others = _judge(state, newcomer)
    return (Send((left_over,), refused), Disconnect((left_over,)), notice, *others)


def _refuse(state: JobState, newcomer: HelloReceived, why: Rejection) -> Actions:
    if state.phase is JobPhase.OVER:
        state.informed += 1
    who = f"{job_notices.node(newcomer.hello)} at {newcomer.address}"
    return (
        Send((newcomer.connection,), Refused(why.refusal, why.text, why.hint)),
        Disconnect((newcomer.connection,)),
        *note_refusal(state, f"{who}: {why.notice}" if why.notice else ""),
    )


def _end(state: JobState, contradiction: Contradiction, newcomers: tuple[int, ...]) -> Actions:
    """End the job, because its nodes contradict each other; others may not have called yet."""
    actions = give_up(state, contradiction, newcomers)
    state.informed = len(state.members) + len(newcomers)
    return actions


def _admit(state: JobState, newcomer: HelloReceived) -> Actions:
    state.members.add(newcomer.connection, newcomer.hello, newcomer.address)
    if is_early(state, started_at(newcomer)):
        state.early[newcomer.connection] = started_at(newcomer)
    warnings = _warn(state, newcomer.hello)
    note_count(state, newcomer.at)
    return (*warnings, *begin_if_complete(state, newcomer.at))


def note_count(state: JobState, at: float) -> None:
    """Note since when all nodes have joined, and since when enough have."""
    joined, last_call = len(state.members), state.terms.last_call
    is_enough = last_call is not None and joined >= last_call.minimum
    state.complete_at = at if joined == state.terms.nodes else NEVER
    # As under torchrun, the last call does not start again with each node that follows.
    state.enough_at = min(at, state.enough_at) if is_enough else NEVER


def _warn(state: JobState, newcomer: Hello) -> Actions:
    own = state.own_hello
    name = "" if state.warned else first_difference(own.should, newcomer.should)
    if not name:
        return ()
    state.warned = True
    return (PrintOnNodeZero(f"warning: {job_notices.disagreement(name, own, newcomer)}"),)


def remove(state: JobState, connection: int, why: str, at: float) -> Action:
    """Remove a member, and wait for its node again."""
    hello = state.members.remove(connection)
    state.early.pop(connection, None)
    note_count(state, at)
    return PrintOnNodeZero(f"{job_notices.node(hello)} {why}")


def give_up(
    state: JobState, contradiction: Contradiction, newcomers: tuple[int, ...] = ()
) -> Actions:
    """End the job before it begins; no further node needs to be informed."""
    if state.phase is not JobPhase.GATHERING:
        return ()
    everyone = (*state.members.hellos, *newcomers)
    state.phase = JobPhase.OVER
    state.contradiction = (contradiction.text, contradiction.hint)
    state.informed = state.terms.nodes
    state.next_notice = NEVER
    refused = Refused(Refusal.GIVE_UP, contradiction.text, contradiction.hint)
    return (Send(everyone, refused), Disconnect(tuple(each for each in everyone if each != OWN)))


def note_refusal(state: JobState, text: str) -> Actions:
    """Print each refused caller and the reason once."""
    if not text or text in state.refused or len(state.refused) >= MOST_REFUSALS_PRINTED:
        return ()
    state.refused = (*state.refused, text)
    return (PrintOnNodeZero(f"refused {text}"),)


def settled_at(state: JobState) -> float:
    """Return when the job may begin, if nothing happens until then."""
    last_call = state.terms.last_call
    last_call_ends = NEVER if last_call is None else state.enough_at + last_call.timeout
    settling = SECONDS_TO_SETTLE if state.callers else 0.0
    return min(state.complete_at, last_call_ends) + settling


def given_up_at(state: JobState) -> float:
    """Return when it is too late for the missing nodes; never, if they are not needed."""
    return state.began + state.terms.timeout if state.enough_at == NEVER else NEVER


def begin_if_complete(state: JobState, at: float) -> Actions:
    """Begin if all nodes have joined, or if it is too late for the others."""
    if state.phase is not JobPhase.GATHERING or at < settled_at(state):
        return ()
    members, nodes = state.members, state.terms.nodes
    ranks = node_ranks(members.hellos, members.by_rank, nodes)
    notice = () if len(ranks) == nodes else (PrintOnNodeZero(job_notices.begins_without(state)),)
    rules = state.terms.reforming
    faulty = {each: hello for each, hello in members.hellos.items() if hello.fault}
    sound = [each for each in ranks if each not in faulty]
    working = elastic_size(len(sound), rules) if rules.is_elastic else nodes - rules.spares
    if faulty and (OWN in faulty or len(sound) < working or not working):
        return give_up(state, Contradiction(loss_notices.fail_their_check(faulty.values()), ""))
    places = {each: rank for rank, each in enumerate(sound[:working])}
    state.waiting = [each for each in ranks if each not in places]
    first = worlds(state.terms, members.hellos, places, 0, state.master_port)
    beginning.enter(state, first)
    state.next_notice = NEVER
    members.finish_joining()
    state.early = {}
    # The workers' port must be free before any node can start a worker.
    stop_listening = () if state.terms.keeps_joining_port else (StopListening(),)
    host = state.own_hello.host
    return (
        *stop_listening,
        *notice,
        *(Send((each,), WorldFormed(world, host)) for each, world in first.items()),
        *(Send((each,), KeepWaiting(host)) for each in state.waiting),
        *(PrintOnNodeZero(loss_notices.fails_its_check(each)) for each in faulty.values()),
        *successors.inform(state),
    )
