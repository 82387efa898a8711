"""``--exec``: this process becomes its one worker, so all must be known that others would tell."""

from collections.abc import Iterator

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.errors import UsageError
from clusterrun.sources.options.option import Group
from clusterrun.sources.options.rows.output import VERBOSE
from clusterrun.sources.options.table import OPTIONS

OUTPUT = [
    option
    for option in reversed(OPTIONS)
    if option.group in {Group.OUTPUT, Group.LOGS} and option is not VERBOSE
]
"""What is done with output, and takes somebody who reads it; the folder follows from the others."""


def expect_replaceable(job: JobSpec) -> None:
    """Return if nobody is needed beside the worker, before it or after it.

    How many workers there are is known only once the machine is, and checked then.

    Raises:
        UsageError: something is asked for that takes an agent.

    """
    for name, said in _needs_agent(job):
        raise UsageError(
            f"{job.exec.origin}: nobody stays to see to {name} ({said.origin})",
            f"leave one of the two out: {job.exec.origin} or {said.origin}",
        )
    if job.agents > 1 and job.rdzv_endpoint.value is not None:
        raise UsageError(
            f"{job.exec.origin}: nobody stays to keep {job.rdzv_endpoint}",
            "give --master-addr and --master-port instead",
        )
    if job.agents > 1 and job.agent_rank is None:
        raise UsageError(
            f"{job.exec.origin}: nobody joins the others to learn a rank", "give --node-rank"
        )


def _needs_agent(job: JobSpec) -> Iterator[tuple[str, Fact[object]]]:
    if job.last_call is not None:
        yield "nnodes", job.nnodes
    if job.max_restarts.value:
        yield "max_restarts", job.max_restarts
    if job.hang_timeout.value:
        yield "hang_timeout", job.hang_timeout
    if job.stdin_rank.value is not None:
        yield "stdin_rank", job.stdin_rank
    if job.contain.value:
        yield "contain", job.contain
    for option in OUTPUT:
        said: Fact[object] = getattr(job, option.name)
        if said.value and said.value != option.default:
            yield option.name, said
