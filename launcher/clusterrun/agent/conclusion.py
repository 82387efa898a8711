"""The fates of the workers, and the outcome of an attempt, from the last state. Pure."""

import signal
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from clusterrun.agent.attempt_state import AttemptState, Ended, Output
from clusterrun.agent.late_exits import stack_of_killed
from clusterrun.coordination.choice_of_cause import choose_cause, ends_in_exception
from clusterrun.domain.outcome import (
    Ending,
    Evidence,
    Exited,
    Fate,
    Interrupted,
    Killed,
    Outcome,
    Reason,
)
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import LocalRank


def fates_of(
    state: AttemptState,
    plan: NodePlan,
    evidence: Mapping[LocalRank, Evidence],
    logs: Mapping[LocalRank, str],
    epoch: float,
) -> tuple[Fate, ...]:
    """Return how the workers of ``plan`` ended that have ended so far, in the order of their ends.

    Args:
        state: the policy's state.
        plan: what was to run.
        evidence: what this node showed when a worker failed.
        logs: each worker's file of standard error.
        epoch: wall-clock time at which the agent's monotonic clock was 0, in seconds.

    """
    workers = {worker.local_rank: worker for worker in plan.workers}
    shown = {local_rank: evidence.get(local_rank, Evidence()) for local_rank in state.ended}
    return tuple(
        replace(
            _fate(state, plan, workers[local_rank], epoch),
            out_of_memory=shown[local_rank].out_of_memory,
            machine_fault=shown[local_rank].machine_fault,
            log=logs.get(local_rank, ""),
        )
        for local_rank in state.ended
    )


def conclude(state: AttemptState, attempt: int, fates: tuple[Fate, ...]) -> Outcome:
    """Return how an attempt ended: by the verdict, else for what this node knows."""
    reason = state.verdict or state.node_zero_lost or state.external_cause
    if reason is None:
        raise AssertionError("an attempt ends by a verdict or for an external cause")
    by_rank = tuple(sorted(fates, key=lambda fate: fate.rank))
    failure = _earlier_failure(reason, fates)
    return Outcome(
        reason, attempt, by_rank, state.survivors, state.no_restart, failure, state.progress
    )


def _fate(state: AttemptState, plan: NodePlan, worker: WorkerPlan, epoch: float) -> Fate:
    ended = state.ended[worker.local_rank]
    output = state.outputs.get(worker.local_rank, Output("", ""))
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
        hung=stack_of_killed(state, worker.local_rank),
    )


def _own_ending(ended: Ended, output: Output) -> Ending:
    """Return how a worker exited, or was about to exit when the launcher's signal came.

    While a failed worker finalizes, its peers may fail because of it, and all are stopped.
    """
    was_asked = ended.stopped_by_us and ended.ending == Killed(signal.SIGTERM)
    return Exited(1) if was_asked and ends_in_exception(output.tail) else ended.ending


def _earlier_failure(reason: Reason, fates: Iterable[Fate]) -> Fate | None:
    """Return the worker of this node that had failed before a signal ended the job; None if none had."""
    if not isinstance(reason, Interrupted):
        return None
    own = [
        fate for fate in fates if not fate.stopped_by_us and fate.ending != Killed(reason.number)
    ]
    return choose_cause(sorted(own, key=lambda fate: fate.clock))
