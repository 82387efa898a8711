"""Options that ``--exec`` excludes: this process becomes its one worker, and no agent remains."""

from collections.abc import Iterator

from clusterrun.domain.facts import Fact
from clusterrun.domain.job import JobSpec
from clusterrun.errors import UsageError
from clusterrun.job.options import OPTIONS


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
    # The log folder follows from other options, so it comes last.
    for row in sorted(OPTIONS.values(), key=lambda row: row.name == "log_dir"):
        if row.option.needs_agent:
            fact: Fact[object] = getattr(job, row.name)
            # 0 is a rank, too; any other value that counts as false asks for nothing.
            if fact.value != row.default and (fact.value or isinstance(fact.value, int)):
                yield row.name, fact
