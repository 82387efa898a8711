"""The paths of a job's log files: DIR/RUN/attempt-A/HOST-N/rank-R.out and .err, or one rank-R.log.

As torchrun has it: DIR/RUN_RANDOM/attempt_A/LOCALRANK/stdout.log and stderr.log.
"""

import errno
import os
from pathlib import Path

from msgspec import Struct

from clusterrun.domain.facts import Fact
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.errors import MachineError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
"""Errors of a full disk."""


class LogLayout(Struct, frozen=True):
    """The folder of one run, below ``--log-dir``."""

    directory: Path
    run_id: str
    one_file: bool = False
    """Both streams of a worker go to one file, to which ``workerlog`` is a link."""
    torchrun_folder: str = ""
    """RUN_RANDOM, which differs by node and run; "" for clusterrun's own layout."""
    kept_attempts: int = 0
    """Attempts of earlier jobs of the run, whose folders come first."""

    @property
    def run(self) -> Path:
        """The folder of this run; in our own layout, ``directory/latest`` is a link to it."""
        return self.directory / (self.torchrun_folder or self.run_id)

    def attempt(self, number: int) -> Path:
        """Return the folder of the n-th attempt of this job."""
        place = self.kept_attempts + number
        return self.run / f"attempt{'_' if self.torchrun_folder else '-'}{place}"

    def files(self, plan: NodePlan, worker: WorkerPlan) -> tuple[Path, Path]:
        folder = self._folder(plan)
        if self.torchrun_folder:
            folder /= str(worker.local_rank)
            out = folder / "stdout.log"
            return out, out if self.one_file else folder / "stderr.log"
        if self.one_file:
            return (folder / f"rank-{worker.rank}.log",) * 2
        return folder / f"rank-{worker.rank}.out", folder / f"rank-{worker.rank}.err"

    def profile(self, plan: NodePlan, worker: WorkerPlan) -> Path:
        """Return the file for the profile of a worker; TensorBoard knows its ending."""
        return self.files(plan, worker)[0].with_name(f"rank-{worker.rank}.pt.trace.json.gz")

    def filtered_files(self, plan: NodePlan) -> tuple[Path, Path]:
        """Return this node's files for lines of standard output and error with certain texts."""
        folder = self._folder(plan)
        return folder / "filtered_stdout.log", folder / "filtered_stderr.log"

    def workerlog(self, local_rank: int) -> Path:
        """Return where Paddle's launcher writes what the worker of one device prints."""
        return self.directory / f"workerlog.{local_rank}"

    def _folder(self, plan: NodePlan) -> Path:
        attempt = self.attempt(plan.world.attempt)
        # torchrun's folder differs by node already.
        return attempt if self.torchrun_folder else attempt / f"{plan.host}-{plan.world.node_rank}"


def check_log_folder(log_dir: Fact[str | None]) -> None:
    """Return if no log files are wanted, or the folder for them can be written or made.

    It is made with the first file: a job that can't start leaves nothing.

    Raises:
        MachineError: it can't be made, or nothing can be written in it.

    """
    if log_dir.value is None:
        return
    try:
        folder = Path(log_dir.value).absolute()
    except FileNotFoundError:
        raise MachineError(
            f"{log_dir.origin} {log_dir.value}: the current folder has been deleted",
            "change to a folder that exists, or name one from /",
        ) from None
    existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
    if error := _error_of_writing(existing):
        raise MachineError(
            f"{log_dir.origin} {log_dir.value}: log files can't be written there:"
            f" {existing}: {os.strerror(error)}",
            _hint(existing, error),
        )


def _error_of_writing(folder: Path) -> int:
    """Return the error that making a folder in ``folder`` meets; 0 for none."""
    # Rights alone don't tell: root may write to no /proc, and on a file server not everywhere.
    trial = folder / f".clusterrun-{os.uname().nodename}-{os.getpid()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        # A full disk ends no job: its output is shown, and that files lack lines.
        return 0 if error.errno in NO_ROOM else error.errno or errno.EIO
    return 0


def _hint(folder: Path, error: int) -> str:
    if error == errno.EACCES:
        return f"name another folder with --log-dir DIR, or type: chmod u+wx {folder}"
    return "name another folder with --log-dir DIR"
