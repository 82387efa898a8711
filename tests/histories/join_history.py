"""A job as it is while its nodes join: who calls, what each caller gets for an answer, who begins.

Connections are counted in the order of calling: what follows for the caller that connects third,
"node 3" has seen, whichever node of the job it becomes.
"""

import signal
from typing import Any, Self

from clusterrun.bounds import GlobalRank
from clusterrun.policy import job_events, messages
from clusterrun.policy import outcome as outcomes
from clusterrun.policy.notices import ended_while_waiting

from tests.histories.job_history import Job


class JoinHistory(Job):
    """A job that node 0 alone has joined."""

    def __init__(
        self,
        nodes: int = 2,
        workers: int = 1,
        *,
        token: bool = False,
        endpoint: bool = False,
        least: int | None = None,
        **says: Any,
    ) -> None:
        """Start node 0.

        Args:
            nodes: the number of those that work.
            workers: the number of ranks on node 0.
            token: callers have proved that they are of the job.
            endpoint: nodes meet at a port that is not the ranks'.
            least: how many may begin after the last call; None: only all.
            says: what else is unusual in the job, in its settings, and in node 0.

        """
        super().__init__(
            nodes,
            workers,
            alone=True,
            has_token=token,
            keeps_rendezvous_port=endpoint or least is not None,
            least=least,
            **says,
        )

    def connects(self, workers: int = 1) -> Self:
        """Have a caller connect that says nothing yet."""
        self._connect(workers)
        return self

    def sends_hello(self, caller: int, **says: Any) -> Self:
        """Have a silent caller say what it is."""
        self._send_hello(self._nodes[caller], **says)
        return self

    def disconnects(self, refused: str = "") -> Self:
        """Have a silent caller go; ``refused``: it was no clusterrun, or not of this job."""
        self._coordinate(job_events.CallerDisconnected(refused, self.now))
        return self

    def reports_too_early(self, node: int) -> Self:
        """Have a node say that ranks have ended, though none has begun."""
        report = messages.Done(0, (), None)
        self._coordinate(job_events.MessageReceived(node, report, self.now))
        return self

    def is_interrupted(self, number: int = signal.SIGINT) -> Self:
        """Have node 0 get a signal that ends it."""
        why = ended_while_waiting("n0", "node", outcomes.Interrupted(number))
        self._coordinate(job_events.JoinAbandoned(why, self.now))
        return self

    @property
    def all_are_informed(self) -> bool:
        """Whether each node has its answer, so that node 0 may go."""
        return self._coordinator.all_are_informed

    def world_text(self, node: int) -> str:
        """Return what the ranks of a node get to know of the world."""
        world = self._nodes[node].world
        assert world is not None
        ranks = _range(world.first_rank, world.local_size)
        of_role = _range(world.first_role_rank, world.local_size)
        return (
            f"node {world.node_rank} of {world.nodes}, ranks {ranks} of {world.size},"
            f" in the role {of_role} of {world.role_size},"
            f" at {self.master_address(node)}, run {world.run_id},"
            f" logs after {world.kept_attempts}"
        )


def _range(first: GlobalRank, size: int) -> str:
    return f"{first}-{first + size - 1}"
