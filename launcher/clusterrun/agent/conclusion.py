"""State and plan at the end of an attempt -> Outcome. Pure."""

import signal
from collections.abc import Mapping

from msgspec.structs import replace

from clusterrun.agent.state import Ended, Output, State
from clusterrun.coordination.cause import choose_cause, ends_in_exception
from clusterrun.domain.outcome import (
    Ending,
    Exited,
    Fate,
    Interrupted,
    Killed,
    Outcome,
    Reason,
    Succeeded,
    WorkerFailed,
)
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import LocalRank

NOTHING = Output("", "")


def conclude(
    state: State,
    plan: NodePlan,
    evidence: Mapping[LocalRank, str],
    logs: Mapping[LocalRank, str],
    epoch: float,
) -> Outcome:
    """Return how the attempt of ``plan`` ended.

    Args:
        state: the policy's state when it was over.
        plan: what was to run.
        evidence: signs of the OOM killer when a worker failed, in words.
        logs: each worker's file of standard error.
        epoch: wall-clock time at which the agent's monotonic clock was 0, in seconds.

    """
    workers = {worker.local_rank: worker for worker in plan.workers}
    fates = [
        replace(
            _fate(state, plan, workers[local_rank], epoch),
            out_of_memory=evidence.get(local_rank, ""),
            log=logs.get(local_rank, ""),
        )
        for local_rank in state.ended
    ]
    by_time = sorted(fates, key=lambda fate: fate.clock)
    reason = _reason(state, by_time)
    by_rank = tuple(sorted(fates, key=lambda fate: fate.rank))
    failure = _earlier_failure(reason, by_time)
    return Outcome(reason, plan.world.attempt, by_rank, state.survivors, state.no_restart, failure)


def _fate(state: State, plan: NodePlan, worker: WorkerPlan, epoch: float) -> Fate:
    ended = state.ended[worker.local_rank]
    output = state.outputs.get(worker.local_rank, NOTHING)
    return Fate(
        rank=worker.rank,
        local_rank=worker.local_rank,
        host=plan.host,
        pid=ended.pid,
        ending=_own_ending(ended, output),
        stopped_by_us=ended.stopped_by_us,
        clock=epoch + ended.failed_at,
        ran_for=ended.at - ended.since,
        tail=output.tail,
        log="",
        error=output.error_file,
        out_of_memory="",
    )


def _own_ending(ended: Ended, output: Output) -> Ending:
    """Return how a worker ended, or was about to end by itself when our signal came.

    Peers of a failed worker may fail, and all be stopped for it, while it takes itself apart.
    """
    was_asked = ended.stopped_by_us and ended.ending == Killed(signal.SIGTERM)
    return Exited(1) if was_asked and ends_in_exception(output.tail) else ended.ending


def _reason(state: State, fates: list[Fate]) -> Reason:
    if state.verdict is not None:
        return state.verdict
    if state.external_cause is not None:
        return state.external_cause
    cause = choose_cause(fates)
    return Succeeded() if cause is None else WorkerFailed(cause)


def _earlier_failure(reason: Reason, fates: list[Fate]) -> Fate | None:
    """Return the worker of this node that had failed by itself when a signal ended the job."""
    match reason:
        case Interrupted(number):
            own = (fate for fate in fates if not fate.stopped_by_us)
            return choose_cause([fate for fate in own if fate.ending != Killed(number)])
        case _:
            return None
