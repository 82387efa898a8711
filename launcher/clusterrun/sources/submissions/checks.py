"""Checks what is asked of a scheduler as a whole."""

from collections.abc import Sequence

from clusterrun.domain.submissions.submission import Gpus
from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact
from clusterrun.job.sources import Layer, find, value_of
from clusterrun.sources.submissions.options import ROWS, asked_for


def check_request(asked: Sequence[Layer], job: Sequence[Layer], gpus: Fact[Gpus | None]) -> None:
    """Check values against each other.

    Raises:
        UsageError: two cannot both hold.

    """
    limit = asked_for("time", asked)
    before, signal = value_of("suspend_before", job), asked_for("signal", asked)
    early = [(before, before.value), (signal, signal.value and signal.value.seconds)]
    for fact, seconds in early:
        if limit.value and seconds and seconds >= limit.value:
            raise UsageError(
                f"{fact.origin}: {seconds:g} s before the end of a job of {limit.value} s"
                f" ({limit.origin}) is before its start",
                "give a longer time, or fewer seconds",
            )
    for name in ("cpus_per_gpu", "memory_per_gpu"):
        per = asked_for(name, asked)
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
    requeue, signal = value_of("requeue", job), asked_for("signal", asked).value
    ways = ("suspend_before", "suspend_signal", "suspend_hook")
    asks = any(value_of(name, job).value for name in ways)
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
    by_hand = find("nnodes", job[:3])
    refused = (by_hand, find("spares", job), find("array", asked, ROWS))
    for fact in refused:
        if fact and fact.value:
            raise UsageError(
                f"{fact.origin} cannot be used with groups of nodes (slurm.groups in the job file)",
                "change nnodes of each group" if fact is by_hand else "leave one of them out",
            )
