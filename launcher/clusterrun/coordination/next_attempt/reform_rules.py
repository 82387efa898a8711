"""The job's options about lost nodes: whether another attempt follows, and who takes part in it."""

from msgspec import Struct

from clusterrun.job.job import Job
from clusterrun.job.options import ElasticJoin

GROWS_AFTER = 30.0
"""Seconds from the first newcomer to the restart that lets it in, with all that have joined meanwhile."""


class ReformRules(Struct, frozen=True):
    """Without any of them a lost node ends the job."""

    spares: int = 0
    """Nodes beyond those that work; they wait to take the places of lost ones."""
    most_losses: int | None = None
    """Lost nodes after which the job ends; None: no limit."""
    rejoin_timeout: float = 0.0
    """Seconds for which a restart waits for a newcomer if no spare is left."""
    fewest: int = 1
    most: int = 1
    """With ``--nnodes MIN:MAX``; equal for a world that keeps its size."""
    multiple: int = 1
    """An elastic world has a multiple of this many nodes."""
    grows_after: float | None = None
    """Seconds from a newcomer to the restart that lets it in; None: it waits for another reason."""

    exclude_after: int = 0
    """Failures by faults of its machine after which a node is left out; 0: never."""
    fails_over: bool = False
    """An agent succeeds a lost coordinator."""

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes follows losses and newcomers."""
        return self.most > self.fewest

    @property
    def lives_on(self) -> bool:
        """Whether the job may go on without a lost node: then nodes can join while it runs."""
        return self.spares > 0 or self.rejoin_timeout > 0 or self.is_elastic


def reform_rules_of(job: Job) -> ReformRules:
    if not job.outlives_nodes:
        return ReformRules()
    joins_now = job.is_elastic and job.losing.elastic_join is ElasticJoin.NOW
    return ReformRules(
        spares=job.losing.spares,
        most_losses=job.losing.max_node_losses,
        rejoin_timeout=job.losing.rejoin_timeout,
        fewest=job.fewest_nodes if job.is_elastic else 1,
        most=job.nnodes if job.is_elastic else 1,
        multiple=job.losing.elastic_multiple,
        exclude_after=job.losing.exclude_after,
        fails_over=True,
        grows_after=GROWS_AFTER if joins_now else None,
    )
