"""Checks what is asked of a scheduler as a whole."""

from collections.abc import Sequence

from clusterrun.domain.facts import Fact
from clusterrun.domain.submissions.submission import Gpus
from clusterrun.errors import UsageError
from clusterrun.job.sources import Layer
from clusterrun.sources.options.rows.losing import SPARES
from clusterrun.sources.options.rows.suspending import (
    REQUEUE,
    SUSPEND_BEFORE,
    SUSPEND_HOOK,
    SUSPEND_SIGNAL,
)
from clusterrun.sources.options.rows.workers import NNODES
from clusterrun.sources.settings import find, value_of
from clusterrun.sources.submissions import rows


def check_request(asked: Sequence[Layer], job: Sequence[Layer], gpus: Fact[Gpus | None]) -> None:
    """Check values against each other.

    Raises:
        UsageError: two cannot both hold.

    """
    limit = value_of(rows.TIME, asked)
    before, signal = value_of(SUSPEND_BEFORE, job), value_of(rows.SIGNAL, asked)
    early = [(before, before.value), (signal, signal.value and signal.value.seconds)]
    for fact, seconds in early:
        if limit.value and seconds and seconds >= limit.value:
            raise UsageError(
                f"{fact.origin}: {seconds:g} s before the end of a job of {limit.value} s"
                f" ({limit.origin}) is before its start",
                "give a longer time, or fewer seconds",
            )
    for row in (rows.CPUS_PER_GPU, rows.MEMORY_PER_GPU):
        per = value_of(row, asked)
        if per.value is not None and gpus.value is None:
            raise UsageError(
                f"{per.origin}: how many GPUs a node has is not known with {gpus.origin} alone",
                f"type --gpus-per-node N, or leave {per.origin} out: whole nodes have all of theirs",
            )


def requeue_warning(scheduler: str, asked: Sequence[Layer], job: Sequence[Layer]) -> str:
    """Return a warning if the job is to be put back, and nothing suspends it before its end; or "".

    It may be meant: SIGTERM asks for a suspension too, when another job takes the nodes. Kubernetes,
    which gives a job no end, evicts pods with it.
    """
    requeue, signal = value_of(REQUEUE, job), value_of(rows.SIGNAL, asked).value
    asks = any(value_of(row, job).value for row in (SUSPEND_BEFORE, SUSPEND_SIGNAL, SUSPEND_HOOK))
    if not requeue.value or scheduler == "kubernetes" or asks or (signal and signal.name == "TERM"):
        return ""
    name = signal.name if signal else "USR1"
    more = f"--suspend-signal {name}" if signal else f"--signal {name}@300 --suspend-signal {name}"
    return (
        f"{requeue.origin}: nothing suspends the job before its time limit, which ends it for good:"
        f" type {more}, or --suspend-before 300, too"
    )


def check_groups(asked: Sequence[Layer], job: Sequence[Layer]) -> None:
    """Check that nothing is asked for that a job with groups of nodes cannot have.

    Raises:
        UsageError: the number of nodes is set for all groups at once, or Slurm has no such job.

    """
    by_hand = find(NNODES, job[:3])
    refused = (by_hand, find(SPARES, job), find(rows.ARRAY, asked))
    for fact in refused:
        if fact and fact.value:
            raise UsageError(
                f"{fact.origin} cannot be used with groups of nodes (slurm.groups in the job file)",
                "change nnodes of each group" if fact is by_hand else "leave one of them out",
            )
