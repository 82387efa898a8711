"""Where a job's output is kept: DIR/RUN/attempt-A/HOST-N/rank-R.out and .err."""

from pathlib import Path

from msgspec import Struct

from launcher.domain.plan import NodePlan, WorkerPlan


class LogLayout(Struct, frozen=True):
    """The folder of one run, below ``--log-dir``."""

    directory: Path
    run_id: str

    @property
    def run(self) -> Path:
        """The folder of this run; ``directory/latest`` is a link to it."""
        return self.directory / self.run_id

    def files(self, plan: NodePlan, worker: WorkerPlan) -> tuple[Path, Path]:
        """Return a worker's files for standard output and standard error."""
        host = f"{plan.host}-{plan.world.node_rank}"
        folder = self.run / f"attempt-{plan.world.attempt}" / host
        return folder / f"rank-{worker.rank}.out", folder / f"rank-{worker.rank}.err"
