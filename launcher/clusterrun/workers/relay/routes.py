"""Where each worker's output goes, and how its lines look.

Log files are DIR/RUN/attempt-A/HOST-N/rank-R.out and .err, or one rank-R.log; as torchrun has it,
DIR/RUN_RANDOM/attempt_A/LOCALRANK/stdout.log and stderr.log.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from clusterrun.bounds import LocalRank
from clusterrun.cpuset import runs
from clusterrun.errors import MachineError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.output import absolute
from clusterrun.job.values import Std
from clusterrun.planning.plan import NodePlan, WorkerPlan

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
"""Errors of a full disk."""


class LauncherOutput(Struct, frozen=True):
    """Lines are shown on the launcher's own outputs: a terminal, pipe, socket or file each."""

    stdout: int = 1
    stderr: int = 2

    @property
    def descriptors(self) -> set[int]:
        """What the relay needs of the launcher's."""
        return {self.stdout, self.stderr}


class LineStyle(Struct, frozen=True):
    """How the lines of this node's workers look on the screen."""

    raw: bool = False
    """The bytes of the only worker are written as they come, without a prefix."""
    colour: bool = False
    """Prefixes are coloured on a terminal."""
    merged: bool = False
    """Other processes print to the same place: no colours and no live line, even on a terminal."""


class Destination(Struct, frozen=True):
    """Where one stream of a worker goes: to the screen, to its log file, or to both."""

    log: Path | None
    shown: bool = True
    shown_if_log_fails: bool = False
    """Shown only if the log file can't be written."""
    filtered: Path | None = None
    """Shown lines that contain one of ``filters`` go to this file, too."""
    filters: tuple[str, ...] = ()


class WorkerOutput(Struct, frozen=True):
    """One worker, and where its output goes."""

    local_rank: LocalRank
    label: str
    """Its name in messages: "rank 3"."""
    prefix: str
    """What its lines begin with: "[rank 3] "."""
    stdout_to: Destination
    stderr_to: Destination
    error_file: Path | None
    """Its TORCHELASTIC_ERROR_FILE."""
    log_dir: Path | None = None
    """The folder that the user has named, above its log files."""
    style: LineStyle = LineStyle()
    is_watched: bool = True
    """Its output says that the job goes on (``--hang-timeout``): that of a service does not."""


class LogLayout(Struct, frozen=True):
    """The files of one run, below ``--log-dir``."""

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
        program = "rank" if worker.service is None else worker.service.name
        name = f"{program}-{worker.rank_in_program}"
        if self.one_file:
            return (folder / f"{name}.log",) * 2
        return folder / f"{name}.out", folder / f"{name}.err"

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


class Routes(Struct, frozen=True):
    """Where a job's output goes; ``logs``: the layout of its files, None: there are none."""

    job: Job
    logs: LogLayout | None
    style: LineStyle = LineStyle()

    def destinations(self, plan: NodePlan, worker: WorkerPlan) -> tuple[Destination, Destination]:
        """Return where standard output and standard error of ``worker`` go."""
        local_rank = self._local_rank(worker)
        hidden = worker.service is None and self.hidden_by(worker.rank, local_rank) != ""
        texts = (
            self.job.output.duplicate_stdout_filters,
            self.job.output.duplicate_stderr_filters,
        )
        files = self.logs.files(plan, worker) if self.logs else (None, None)
        filtered_files = self.logs.filtered_files(plan) if self.logs else (None, None)

        def of(number: int) -> Destination:
            is_logged, is_printed = self.ways((Std.OUT, Std.ERR)[number], local_rank)
            is_filtered = texts[number] and is_logged and is_printed and not hidden
            return Destination(
                log=files[number] if is_logged else None,
                shown=is_printed and not hidden,
                shown_if_log_fails=not is_printed and not hidden,
                filtered=filtered_files[number] if is_filtered else None,
                filters=texts[number],
            )

        return of(0), of(1)

    def relayed(self, plan: NodePlan, worker: WorkerPlan) -> Std:
        """Return the streams that must go through the relay even if the worker could have the terminal."""
        if self.job.output.log_line_prefix_template:
            return Std.ALL
        relayed = Std.NONE
        for stream, to in zip((Std.OUT, Std.ERR), self.destinations(plan, worker), strict=True):
            if to.log is not None or not to.shown or to.filtered is not None:
                relayed |= stream
        return relayed

    def prefix(self, plan: NodePlan, worker: WorkerPlan) -> str:
        """Return the prefix of the lines of ``worker``, by the user's template or ours."""
        template = self.job.output.log_line_prefix_template
        if template is None:
            return f"[{label_of(plan, worker)}] "
        # Its import takes long, as it compiles a pattern.
        from string import Template

        values = {
            "rank": worker.rank,
            "local_rank": self._local_rank(worker),
            "role_name": {**plan.env, **worker.env}.get("ROLE_NAME", ""),
            "host": plan.host.partition(".")[0],
            # torch 2.15's: socket.gethostname().
            "hostname": plan.host,
            "node_rank": plan.world.node_rank,
        }
        return Template(template).safe_substitute(values)

    def hidden_by(self, rank: int, local_rank: int | None) -> str:
        """Return what keeps a worker's lines off the screen, "--ranks 0"; "" if nothing does.

        ``local_rank``: None if it is unknown; then only --ranks counts.
        """
        for name, number in (("ranks", rank), ("local_ranks_filter", local_rank)):
            chosen = self.job.setting(name)
            if chosen.value is not None and number is not None and number not in chosen.value:
                return f"{chosen.origin} {chosen.value}"
        return ""

    def remarks(self, plan: NodePlan) -> Iterator[str]:
        """Yield warnings about options that name ranks which do not exist."""
        world = plan.world
        ranks, local = self.job.setting("ranks"), self.job.setting("local_ranks_filter")
        if ranks.value is not None and ranks.value.lowest >= world.size:
            yield f"{ranks.origin}: there is no rank {ranks.value}: no worker's lines are printed"
        if local.value is not None and local.value.lowest >= world.local_size:
            yield (
                f"{local.origin}: there is no local rank {local.value} here: no worker's lines are"
                " printed"
            )

        yield from self._unknown_local_ranks(plan)

    def _unknown_local_ranks(self, plan: NodePlan) -> Iterator[str]:
        if self.job.tasks is not None:
            return
        for option in (self.job.setting("redirects"), self.job.setting("tee")):
            named = () if option.value is None else option.value.by_local_rank
            if missing := [rank for rank in named if rank >= plan.world.local_size]:
                ranks = ",".join(runs(missing))
                yield (
                    f"{option.origin}: there is no local rank {ranks} here, where they go from 0 to"
                    f" {plan.world.local_size - 1}"
                )

    def links(self, plan: NodePlan) -> Iterator[tuple[Path, str]]:
        if self.logs is None:
            return
        # A run that could not start leaves the link to the run before it.
        first = plan.world.attempt == 0 and plan.world.node_rank == 0
        # Programs that look for torchrun's files take each folder for a run.
        if first and not self.logs.torchrun_folder:
            yield self.logs.directory / "latest", self.logs.run_id
        for worker in plan.workers if self.logs.one_file else ():
            log, _ = self.logs.files(plan, worker)
            link = self.logs.workerlog(self._local_rank(worker))
            yield link, str(log.relative_to(self.logs.directory))

    def ways(self, stream: Std, local_rank: int) -> tuple[bool, bool]:
        """Return whether a worker's stream goes to a log file, and whether it is printed.

        Without --redirects and --tee it does both, if there are log files.
        """
        redirects, tee = self.job.files.redirects, self.job.files.tee
        if self.logs is None:
            return False, True
        if redirects is None and tee is None:
            return True, True
        if tee is not None and stream in tee.of(local_rank):
            return True, True
        is_redirected = redirects is not None and stream in redirects.of(local_rank)
        return is_redirected, not is_redirected

    def _local_rank(self, worker: WorkerPlan) -> int:
        # LOCAL_RANK itself may be 0 in every task, where each sees one GPU.
        tasks = self.job.tasks
        return worker.local_rank if tasks is None else tasks.local_rank


def label_of(plan: NodePlan, worker: WorkerPlan) -> str:
    """Return the name of a worker, "rank 3" or "server 0", with the host where there are several."""
    host = f" {plan.host.partition('.')[0]}" if plan.world.nodes > 1 else ""
    program = "rank" if worker.service is None else worker.service.name
    return f"{program} {worker.rank_in_program}{host}"


def check_log_folder(log_dir: Setting[str | None]) -> None:
    """Return if no log files are wanted, or the folder for them can be written or made.

    It is made with the first file: a job that can't start leaves nothing.

    Raises:
        MachineError: it can't be made, or nothing can be written in it.

    """
    if log_dir.value is None:
        return
    folder = absolute(log_dir.value, log_dir.origin)
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
    trial = folder / f".clusterrun-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        # A full disk ends no job: its output is shown, and that files lack lines.
        return 0 if error.errno in NO_ROOM else error.errno or errno.EIO
    return 0


def _hint(folder: Path, error: int) -> str:
    if error == errno.EACCES and folder.stat().st_uid == os.geteuid():
        return f"name another folder with --log-dir DIR, or type: chmod u+wx {folder}"
    return "name another folder with --log-dir DIR"
