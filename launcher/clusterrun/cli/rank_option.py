"""Whether a running job has the rank or the node that a command asks for."""

from clusterrun.control.running_jobs import RunningJob
from clusterrun.errors import UsageError


def check_rank(job: RunningJob, rank: int | None) -> None:
    """Check that the job has the rank of ``--rank``.

    Raises:
        UsageError: it has not.

    """
    _check(job, "rank", rank, job.described.ranks)


def check_node(job: RunningJob, node: int | None) -> None:
    """Check that the job has the node of ``--node``.

    Raises:
        UsageError: it has not.

    """
    _check(job, "node", node, job.described.nodes)


def _check(job: RunningJob, what: str, number: int | None, count: int) -> None:
    if number is not None and number >= count:
        raise UsageError(
            f"--{what}: run {job.described.run_id} has no {what} {number}",
            f"it has {count}: give one from 0 to {count - 1}",
        )
