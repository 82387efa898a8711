"""Which workers of this node read the launcher's standard input."""

from collections.abc import Iterator

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.plan import NodePlan
from clusterrun.workers.terminal import Terminal


class StandardInput(Struct, frozen=True):
    """Any worker may read a terminal; one rank of the job reads anything else."""

    stdin_rank: Fact[int | None]
    """The option of that name."""
    terminal: Terminal | None
    """The terminal that it is; None: it is none, or the launcher is not in its foreground."""
    workers: int
    """Number of workers on this node."""

    @property
    def shared_terminal(self) -> Terminal | None:
        """The terminal whose foreground the one worker becomes; None: there are several workers."""
        return self.terminal if self.workers == 1 else None

    def is_read_by(self, rank: int) -> bool:
        """Return whether the worker of this rank gets it; all others get /dev/null."""
        chosen = self.stdin_rank.value
        if self.terminal is not None and (chosen is None or self.workers == 1):
            return True
        return rank == (chosen or 0)

    def remarks(self, plan: NodePlan) -> Iterator[str]:
        """Yield a warning if the option names a rank that the world does not have."""
        rank = self.stdin_rank
        if rank.value is not None and rank.value >= plan.world.size:
            yield f"{rank.origin}: there is no rank {rank.value}: no worker reads standard input"
