"""The coordinator while nodes come: who is let in, who is not, and when the world is complete. Pure."""

from msgspec.structs import replace

from clusterrun.coordination import notices
from clusterrun.coordination.admission import Quarrel, TurnedAway, first_difference, objection
from clusterrun.coordination.earlier_starts import is_early, leftover, started_at
from clusterrun.coordination.messages import Hello, Refusal, Refused, WorldFormed
from clusterrun.coordination.state import (
    NEVER,
    OWN,
    CloseDoor,
    Decision,
    HangUp,
    Introduced,
    Phase,
    Reply,
    Say,
    Send,
    State,
)
from clusterrun.coordination.worlds import node_ranks, worlds

SECONDS_TO_SETTLE = 0.2
"""How long a complete world waits for callers that have not said yet who they are: one node too
many should be found out before the workers start."""

MOST_REFUSALS_TOLD = 16
"""Lines on node 0; a port scanner gets no more."""


def introduced(state: State, newcomer: Introduced) -> Decision:
    """Let a caller in, or refuse it, or end it all because of what it says."""
    former = _former_call(state, newcomer.hello)
    if state.phase is not Phase.GATHERING or former is None:
        return _judged(state, newcomer)
    if newcomer.connection < former:
        # An older call of the same agent, whose words were held up on their way.
        return state, (HangUp((newcomer.connection,)),)
    state, notes = left(state, former, "calls again", newcomer.at)
    state, replies = _judged(state, newcomer)
    return state, (HangUp((former,)), *notes, *replies)


def _former_call(state: State, hello: Hello) -> int | None:
    """Return the connection of the member that is the same agent; None if it is not there."""
    # Most have a rank, which finds it at once in a large job.
    same_rank = (state.claims.get(hello.rank),) if hello.rank is not None else state.members
    others = (each for each in same_rank if each is not None and each != OWN)
    return next((each for each in others if state.members[each].identity == hello.identity), None)


def _judged(state: State, newcomer: Introduced) -> Decision:
    match objection(state, newcomer.hello):
        case TurnedAway() as turned_away:
            return _turn_away(state, newcomer, turned_away)
        case Quarrel() as quarrel:
            left_over = leftover(state, newcomer)
            if left_over is not None:
                return _without(state, left_over, newcomer)
            if state.terms.has_token:
                return _quarrel(state, quarrel, (newcomer.connection,))
            # Anybody who reaches the port could contradict: that must not end the job.
            return _turn_away(state, newcomer, quarrel.refusal)
        case None:
            return _let_in(state, newcomer)


def _without(state: State, left_over: int, newcomer: Introduced) -> Decision:
    """Refuse the one of two agents of a host that is left over from an earlier start."""
    if left_over == newcomer.connection:
        why = TurnedAway(Refusal.GIVE_UP, notices.STARTED_AGAIN, "", notices.LEFT_OVER)
        return _turn_away(state, newcomer, why)
    refused = Refused(Refusal.GIVE_UP, notices.STARTED_AGAIN, "")
    state, notes = left(state, left_over, f"is refused: {notices.LEFT_OVER}", newcomer.at)
    state, replies = _judged(state, newcomer)
    return state, (Send((left_over,), refused), HangUp((left_over,)), *notes, *replies)


def _turn_away(state: State, newcomer: Introduced, why: TurnedAway) -> Decision:
    refused = Refused(why.refusal, why.told, why.hint)
    replies: tuple[Reply, ...] = (
        Send((newcomer.connection,), refused),
        HangUp((newcomer.connection,)),
    )
    if state.phase is Phase.OVER:
        state = replace(state, told=state.told + 1)
    who = f"{notices.node(newcomer.hello)} at {newcomer.peer}"
    state, notes = note_refusal(state, f"{who}: {why.noted}" if why.noted else "")
    return state, (*replies, *notes)


def _quarrel(state: State, quarrel: Quarrel, newcomers: tuple[int, ...]) -> Decision:
    """End it all, because the nodes can't be one job."""
    state, replies = give_up(state, quarrel, newcomers)
    return replace(state, told=len(state.members) + len(newcomers)), replies


def _let_in(state: State, newcomer: Introduced) -> Decision:
    hello = newcomer.hello
    state = replace(
        state,
        members={**state.members, newcomer.connection: hello},
        peers={**state.peers, newcomer.connection: newcomer.peer},
    )
    if is_early(state, started_at(newcomer)):
        state = replace(state, early={**state.early, newcomer.connection: started_at(newcomer)})
    if hello.rank is not None:
        state = replace(state, claims={**state.claims, hello.rank: newcomer.connection})
    state, warnings = _warn(state, hello)
    state = counted(state, newcomer.at)
    state, replies = complete(state, newcomer.at)
    return state, (*warnings, *replies)


def counted(state: State, at: float) -> State:
    """Note since when all are there, and since when enough; ``at``: when somebody came or went."""
    there, last_call = len(state.members), state.terms.last_call
    is_enough = last_call is not None and there >= last_call.fewest
    return replace(
        state,
        complete_at=at if there == state.terms.nodes else NEVER,
        # As under torchrun, the last call is not made anew for each who follows it.
        enough_at=min(at, state.enough_at) if is_enough else NEVER,
    )


def _warn(state: State, newcomer: Hello) -> Decision:
    own = state.terms.hello
    name = "" if state.warned else first_difference(own.should, newcomer.should)
    if not name:
        return state, ()
    text = f"warning: {notices.disagreement(name, own, newcomer)}"
    return replace(state, warned=True), (Say(text),)


def left(state: State, connection: int, how: str, at: float) -> Decision:
    """Wait for a node again that was there until ``at``; ``how`` says what became of it."""
    hello = state.members[connection]
    state = replace(
        state,
        members={each: there for each, there in state.members.items() if each != connection},
        claims={rank: each for rank, each in state.claims.items() if each != connection},
        peers={each: peer for each, peer in state.peers.items() if each != connection},
        early={each: at for each, at in state.early.items() if each != connection},
    )
    return counted(state, at), (Say(f"{notices.node(hello)} {how}"),)


def give_up(state: State, quarrel: Quarrel, newcomers: tuple[int, ...]) -> Decision:
    """End it all; nobody else is to be told."""
    if state.phase is not Phase.GATHERING:
        return state, ()
    everybody = (*state.members, *newcomers)
    others = tuple(each for each in everybody if each != OWN)
    refused = Refused(Refusal.GIVE_UP, quarrel.text, quarrel.hint)
    state = replace(
        state,
        phase=Phase.OVER,
        quarrel=(quarrel.text, quarrel.hint),
        told=state.terms.nodes,
        next_notice=NEVER,
    )
    return state, (Send(everybody, refused), HangUp(others))


def note_refusal(state: State, text: str) -> Decision:
    """Say once of each who was refused, and why."""
    if not text or text in state.refused or len(state.refused) >= MOST_REFUSALS_TOLD:
        return state, ()
    return replace(state, refused=(*state.refused, text)), (Say(f"refused {text}"),)


def settled_at(state: State) -> float:
    """Return when the world may begin, if nothing happens until then."""
    return min(state.complete_at, _last_call_ends(state)) + (
        SECONDS_TO_SETTLE if state.callers else 0.0
    )


def given_up_at(state: State) -> float:
    """Return when it is too late for the nodes that are missing; never, if they are not needed."""
    return state.began + state.terms.timeout if state.enough_at == NEVER else NEVER


def _last_call_ends(state: State) -> float:
    last_call = state.terms.last_call
    return NEVER if last_call is None else state.enough_at + last_call.patience


def complete(state: State, at: float) -> Decision:
    """Begin, if all nodes are there or it is too late for the others, and nobody seems to come."""
    if state.phase is not Phase.GATHERING or at < settled_at(state):
        return state, ()
    ranks = node_ranks(state.members, state.claims, state.terms.nodes)
    notes = () if len(ranks) == state.terms.nodes else (Say(notices.begins_without(state)),)
    terms = replace(state.terms, nodes=len(ranks))
    first = worlds(terms, state.members, ranks, state.attempt, terms.master_port)
    state = replace(
        state,
        terms=terms,
        phase=Phase.RUNNING,
        ranks=ranks,
        first_ranks={each: world.first_rank for each, world in first.items()},
        next_notice=NEVER,
    )
    host = terms.hello.host
    # The workers' port must be free before anybody can start a worker.
    door: tuple[Reply, ...] = () if terms.open_for_good else (CloseDoor(),)
    return state, (
        *door,
        *notes,
        *(Send((each,), WorldFormed(world, host)) for each, world in first.items()),
    )
