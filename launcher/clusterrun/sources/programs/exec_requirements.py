"""Options that ``--exec`` excludes: this process becomes its one worker, and no agent remains."""

from collections.abc import Iterator

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.errors import UsageError
from clusterrun.sources.options.option import Group
from clusterrun.sources.options.rows.failing import CONTAIN, HANG_TIMEOUT, MAX_RESTARTS
from clusterrun.sources.options.rows.output import VERBOSE
from clusterrun.sources.options.table import BY_GROUP

FAILING = (MAX_RESTARTS, HANG_TIMEOUT, CONTAIN)

OUTPUT = [
    option
    for option in reversed((*BY_GROUP[Group.OUTPUT], *BY_GROUP[Group.FILES]))
    if option is not VERBOSE
]
"""Options for output, which the relay reads; the log folder last, as it follows from others."""


def check_replaceable(job: JobSpec) -> None:
    """Check that no option needs an agent.

    The number of workers depends on the machine, and is checked by the plan.
    """
    for name, fact in _needs_agent(job):
        raise UsageError(
            f"{job.exec.origin} leaves no agent, but {name} ({fact.origin}) needs one",
            f"leave one out: {job.exec.origin} or {fact.origin}",
        )
    if job.agents > 1 and job.rdzv_endpoint.value is not None:
        raise UsageError(
            f"{job.exec.origin} leaves no agent, but an agent must listen at {job.rdzv_endpoint}",
            "give --master-addr and --master-port instead",
        )
    if job.agents > 1 and job.agent_rank is None:
        raise UsageError(
            f"{job.exec.origin} leaves no agent that could join and get a rank", "give --node-rank"
        )


def _needs_agent(job: JobSpec) -> Iterator[tuple[str, Fact[object]]]:
    if job.fewest_nodes.value != job.nnodes.value:
        yield "nnodes", job.nnodes
    if job.debug.value is not None:
        yield "debug", job.debug
    if job.pdb.value:
        yield "pdb", job.pdb
    if job.profile.value is not None:
        yield "profile", job.profile
    lost_or_suspended = (*BY_GROUP[Group.LOSING], *BY_GROUP[Group.SUSPENDING])
    for option in (*FAILING, *lost_or_suspended, *OUTPUT):
        fact: Fact[object] = getattr(job, option.name)
        if fact.value and fact.value != option.default:
            yield option.name, fact
