"""The end of a job on all its nodes: one stop, one verdict. Pure."""

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec.structs import replace

from clusterrun.coordination import notices, restarting
from clusterrun.coordination.cause import choose_cause
from clusterrun.coordination.messages import (
    Done,
    EndedExternally,
    Failing,
    Stop,
    Verdict,
)
from clusterrun.coordination.state import (
    NEVER,
    Decision,
    Gone,
    HangUp,
    Heard,
    Phase,
    PreparePort,
    Reply,
    Report,
    Send,
    Silent,
    State,
)
from clusterrun.domain.bounds import as_line
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    HelperFailed,
    Interrupted,
    Killed,
    NodeLost,
    Reason,
    Succeeded,
    WorkerFailed,
)

SECONDS_BETWEEN_NOTICES = 60.0
"""To nodes that are done and wait for others."""

SECONDS_OF_ECHO = 1.0
"""Workers may notice a dead peer sooner than we do that its node is lost."""

MOST_EXTERNAL_CAUSES = 16
"""Different ones that are kept; it is the first that counts, most often."""

DatedFate = tuple[float, int, Fate]
"""When by our clock, and whose rank to break a tie by."""


def heard(state: State, heard: Heard) -> Decision:
    """Return what a member's message makes of ``state``, while the job runs."""
    connection = heard.connection
    if connection in state.lost:
        # Continued after it was given up: the others end without it.
        return state, ()
    match heard.message:
        case EndedExternally(_, external_cause):
            # Also from a node that is done: somebody may not want to wait for the others.
            external_cause = _at_home(state, connection, external_cause)
            return _stop(_with_external_cause(state, external_cause), connection, external_cause)
        case _ if connection in state.reports:
            # It has said its last word.
            return state, (HangUp((connection,)),)
        case Failing(_, fate, age):
            dated = fate, heard.at - max(0.0, age)
            state = replace(state, announced={**state.announced, connection: dated})
            return _stop(state, connection, fate)
        case Done():
            return _done(state, heard, heard.message)
        case _:
            assert_never(heard.message)


def gone(state: State, gone: Gone) -> Decision:
    """Return what becomes of the job when the connection to a member is gone."""
    node = _node(state, gone.connection, silent=gone.unreachable)
    if gone.connection in state.lost:
        return state, ()
    if gone.connection in state.reports:
        return replace(state, left={**state.left, gone.connection: node}), ()
    return _lost(state, node, gone)


def silent(state: State, silent: Silent) -> Decision:
    """Return what becomes of the job when a member is silent for too long.

    It may be frozen, and be continued later: then it finds what all the others were told.
    """
    connection = silent.connection
    if connection in state.lost:
        return state, ()
    node = _node(state, connection, silent=True)
    state = replace(state, silent=state.silent | {connection})
    if connection in state.reports:
        return replace(state, left={**state.left, connection: node}), ()
    return _lost(state, node, silent)


def _node(state: State, connection: int, *, silent: bool) -> NodeLost:
    node = NodeLost(state.ranks[connection], state.members[connection].host)
    return replace(node, how=state.terms.rhythm.silence) if silent else node


def _lost(state: State, node: NodeLost, what: Gone | Silent) -> Decision:
    silence = state.terms.rhythm.timeout if node.how == state.terms.rhythm.silence else 0.0
    state = replace(
        state,
        lost={**state.lost, what.connection: node},
        lost_at=min(state.lost_at, what.at - silence),
    )
    state, stop = _stop(state, what.connection, node)
    state, verdict = _judge_when_all_are_known(state, what.at)
    return state, (*stop, *verdict)


def _with_external_cause(state: State, external_cause: ExternalCause) -> State:
    """Keep what is new: a scheduler signals thousands of nodes at once, and all of them tell."""
    known = state.external_causes
    if external_cause in known or len(known) >= MOST_EXTERNAL_CAUSES:
        return state
    return replace(state, external_causes=(*known, external_cause))


def _done(state: State, heard: Heard, done: Done) -> Decision:
    connection = heard.connection
    external_cause = done.external_cause and _at_home(state, connection, done.external_cause)
    report = Report(
        fates=tuple(each.fate for each in done.fates),
        ends=tuple(heard.at - max(0.0, each.age) for each in done.fates),
        external_cause=external_cause,
    )
    state = replace(state, reports={**state.reports, connection: report})
    state, stop = _stop_for(state, connection, report)
    state, verdict = _judge_when_all_are_known(state, heard.at)
    return state, (*stop, *verdict)


def _stop_for(state: State, connection: int, report: Report) -> Decision:
    """Make sure that a node that did not succeed has stopped the others."""
    failed = next((fate for fate in report.fates if not fate.ending.succeeded), None)
    cause = report.external_cause or failed
    return _stop(state, connection, cause) if cause else (state, ())


def _stop(state: State, connection: int, cause: Fate | ExternalCause | NodeLost) -> Decision:
    if state.cause_of_stop is not None:
        return state, ()
    state = replace(state, cause_of_stop=cause)
    why = _why(cause, state.members[connection].host)
    external_cause = None if isinstance(cause, Fate | NodeLost) else cause
    return state, (Send(_audience(state), Stop(state.attempt, why, external_cause)),)


def _why(cause: Fate | ExternalCause | NodeLost, host: str) -> str:
    match cause:
        case Fate():
            return f"rank {cause.rank} on {host} failed"
        case NodeLost(node_rank, lost_host, how):
            return f"node {node_rank} ({lost_host}) {how}"
        case _:
            return notices.order_to_stop(host, cause)


def _at_home(state: State, connection: int, external_cause: ExternalCause) -> ExternalCause:
    """Add the host to what would read as the reader's own."""
    if isinstance(external_cause, HelperFailed):
        host = state.members[connection].host
        # A member's name of it may be as long as a line already.
        return replace(external_cause, name=as_line(f"{external_cause.name} on {host}"))
    return external_cause


def _audience(state: State) -> tuple[int, ...]:
    """Return those whose connections are there."""
    gone = {*state.lost, *state.left} - state.silent
    return tuple(each for each in state.ranks if each not in gone)


def _judge_when_all_are_known(state: State, at: float) -> Decision:
    if len(state.reports) + len(state.lost) < len(state.ranks):
        due = min(state.next_notice, at + SECONDS_BETWEEN_NOTICES) if state.reports else NEVER
        return replace(state, next_notice=due), ()
    why = reason(state)
    if not isinstance(why, WorkerFailed) or not restarting.might_follow(state, why):
        return _over(state, why, "")
    if external_cause := next(_external_causes(state), None):
        # It came when all were stopping already, and it is what keeps them from going on.
        return _over(state, external_cause, "")
    if obstacle := restarting.obstacle(state, why):
        return _over(state, why, obstacle)
    state = replace(state, phase=Phase.RESTARTING, previous=why, next_notice=NEVER)
    return state, (PreparePort(),)


def _over(state: State, why: Reason, no_restart: str) -> Decision:
    verdict = Send(_audience(state), Verdict(why, no_restart))
    # The others hang up themselves once they have heard it.
    farewell: tuple[Reply, ...] = (HangUp((*state.silent,)),) if state.silent else ()
    return replace(state, phase=Phase.OVER, next_notice=NEVER), (verdict, *farewell)


def reason(state: State) -> Reason:
    """Return why the job ended, once every node has reported or is lost.

    What came from outside before anything failed comes first: nodes that are lost while they end
    are lost to it. Then a lost node, since what its peers say are echoes; the failed worker that
    caused the others; and what came from outside later.
    """
    if isinstance(state.cause_of_stop, ExternalCause):
        return state.cause_of_stop
    dated = dated_fates(state)
    cause = choose_cause([fate for _, _, fate in dated])
    if state.lost and not (cause and _failed_before_the_loss(state, cause, dated)):
        return next(iter(state.lost.values()))
    if cause and not _is_the_signal_of_all(state, cause):
        return WorkerFailed(cause)
    if external_cause := next(_external_causes(state), None):
        return external_cause
    if isinstance(state.cause_of_stop, Fate):
        return WorkerFailed(state.cause_of_stop)
    return Succeeded()


def _failed_before_the_loss(state: State, cause: Fate, dated: Sequence[DatedFate]) -> bool:
    """Tell whether a worker failed clearly before a node was lost: then it is no echo of that.

    Nor is it where all began with it and the one lost node is its own. If more are lost, what a
    node said before it was lost may be the echo of another's loss.
    """
    first = next(
        (fate for each, (fate, _) in state.announced.items() if [*state.lost] == [each]), None
    )
    if first is not None and first == state.cause_of_stop and first.rank == cause.rank:
        return True
    failed_at = next(at for at, _, fate in dated if fate == cause)
    return failed_at < state.lost_at - SECONDS_OF_ECHO


def _is_the_signal_of_all(state: State, cause: Fate) -> bool:
    """Tell whether a worker was ended by a signal that an agent got, too: somebody ends the job."""
    numbers = {each.number for each in _external_causes(state) if isinstance(each, Interrupted)}
    return isinstance(cause.ending, Killed) and cause.ending.number in numbers


def _external_causes(state: State) -> Iterator[ExternalCause]:
    yield from state.external_causes
    yield from (report.external_cause for report in state.reports.values() if report.external_cause)


def dated_fates(state: State) -> list[DatedFate]:
    """Return all fates that are known, in the order of their ends or failures."""
    dated = [
        (at, fate.rank, fate)
        for report in state.reports.values()
        for at, fate in zip(report.ends, report.fates, strict=True)
    ]
    announced = [state.announced[each] for each in state.lost if each in state.announced]
    dated += [(at, fate.rank, fate) for fate, at in announced]
    return sorted(dated, key=lambda each: each[:2])
