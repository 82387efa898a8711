"""Where each worker's output goes, and how its lines look.

Log files are DIR/RUN/attempt-A/HOST-N/rank-R.out and .err, or one rank-R.log. In torchrun's layout they
are DIR/RUN_RANDOM/attempt_A/LOCALRANK/stdout.log and stderr.log.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from clusterrun.bounds import LocalRank
from clusterrun.cpuset import number_ranges
from clusterrun.errors import MachineError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import Job
from clusterrun.job.output import absolute
from clusterrun.job.values import Std
from clusterrun.planning.plan import NodePlan, WorkerPlan

DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}


class LauncherOutput(Struct, frozen=True):
    """The launcher's descriptors on which lines are shown: each a terminal, pipe, socket or file."""

    stdout: int = 1
    stderr: int = 2


class LineStyle(Struct, frozen=True):
    """How the lines of this node's workers look on the screen."""

    raw: bool = False
    """Whether the bytes of a single worker are written as they come, without a prefix."""
    colour: bool = False
    """Whether prefixes are coloured on a terminal."""
    merged: bool = False
    """Whether other processes print to the same terminal, so it gets no colours and no live line."""


class Destination(Struct, frozen=True):
    """Where one stream of a worker goes: to the screen, to its log file, or to both."""

    log: Path | None
    shown: bool = True
    shown_if_log_fails: bool = False
    """Whether it is shown once the log file can't be written."""
    filtered: Path | None = None
    """A file for shown lines that contain one of ``filters``."""
    filters: tuple[str, ...] = ()


class WorkerOutput(Struct, frozen=True):
    """Where the output of one worker goes."""

    local_rank: LocalRank
    label: str
    """Its name in messages: "rank 3"."""
    prefix: str
    """Printed before its lines: "[rank 3] "."""
    stdout_to: Destination
    stderr_to: Destination
    error_file: Path | None
    """Its TORCHELASTIC_ERROR_FILE."""
    log_dir: Path | None = None
    """The folder of ``--log-dir``, above its log files."""
    style: LineStyle = LineStyle()
    is_watched: bool = True
    """Whether its output counts as progress (``--hang-timeout``); a service's output does not."""


class LogLayout(Struct, frozen=True):
    """The log files of one run, below ``--log-dir``."""

    directory: Path
    run_id: str
    one_file: bool
    """Whether both streams of a worker go to one file, to which ``workerlog`` is a link."""
    torchrun_folder: str
    """RUN_RANDOM, which differs by node and run; "" for clusterrun's own layout."""
    kept_attempts: int
    """Number of attempts of earlier jobs of the run, whose folders come first."""

    @property
    def run(self) -> Path:
        """The folder of this run; in clusterrun's layout, ``directory/latest`` is a link to it."""
        return self.directory / (self.torchrun_folder or self.run_id)

    def attempt(self, number: int) -> Path:
        """Return the folder of the n-th attempt of this job."""
        separator = "_" if self.torchrun_folder else "-"
        return self.run / f"attempt{separator}{self.kept_attempts + number}"

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
        """Return this node's files for filtered lines of standard output and error."""
        folder = self._folder(plan)
        return folder / "filtered_stdout.log", folder / "filtered_stderr.log"

    def workerlog(self, local_rank: int) -> Path:
        """Return the log file of one device's worker, as Paddle's launcher names it."""
        return self.directory / f"workerlog.{local_rank}"

    def _folder(self, plan: NodePlan) -> Path:
        attempt = self.attempt(plan.world.attempt)
        # torchrun's folder already differs by node.
        return attempt if self.torchrun_folder else attempt / f"{plan.host}-{plan.world.node_rank}"


class Routes(Struct, frozen=True):
    """Where a job's output goes."""

    job: Job
    logs: LogLayout | None
    """None: there are no log files."""
    style: LineStyle = LineStyle()

    def destinations(self, plan: NodePlan, worker: WorkerPlan) -> tuple[Destination, Destination]:
        """Return where standard output and standard error of ``worker`` go."""
        local_rank = self._local_rank(worker)
        hidden = worker.service is None and self.hidden_by(worker.rank, local_rank) != ""
        output = self.job.output
        texts = (output.duplicate_stdout_filters, output.duplicate_stderr_filters)
        files = self.logs.files(plan, worker) if self.logs else (None, None)
        filtered_files = self.logs.filtered_files(plan) if self.logs else (None, None)

        def destination(number: int) -> Destination:
            is_logged, is_printed = self.is_logged_and_printed(
                (Std.OUT, Std.ERR)[number], local_rank
            )
            is_filtered = texts[number] and is_logged and is_printed and not hidden
            return Destination(
                log=files[number] if is_logged else None,
                shown=is_printed and not hidden,
                shown_if_log_fails=not is_printed and not hidden,
                filtered=filtered_files[number] if is_filtered else None,
                filters=texts[number],
            )

        return destination(0), destination(1)

    def relayed(self, plan: NodePlan, worker: WorkerPlan) -> Std:
        """Return the streams of ``worker`` that must go through the relay, even if it has the terminal."""
        if self.job.output.log_line_prefix_template:
            return Std.ALL
        relayed = Std.NONE
        for stream, to in zip((Std.OUT, Std.ERR), self.destinations(plan, worker), strict=True):
            if to.log is not None or not to.shown or to.filtered is not None:
                relayed |= stream
        return relayed

    def prefix(self, plan: NodePlan, worker: WorkerPlan) -> str:
        """Return the prefix of the lines of ``worker``, by the user's template or the default."""
        template = self.job.output.log_line_prefix_template
        if template is None:
            return f"[{label_of(plan, worker)}] "
        # This import is slow, because it compiles a pattern.
        from string import Template

        values = {
            "rank": worker.rank,
            "local_rank": self._local_rank(worker),
            "role_name": {**plan.env, **worker.env}.get("ROLE_NAME", ""),
            "host": plan.host.partition(".")[0],
            # Since torch 2.15: socket.gethostname().
            "hostname": plan.host,
            "node_rank": plan.world.node_rank,
        }
        return Template(template).safe_substitute(values)

    def hidden_by(self, rank: int, local_rank: int | None) -> str:
        """Return the option that hides a worker's lines, "--ranks 0"; "" if none does.

        ``local_rank`` is None if it is unknown; then only --ranks counts.
        """
        for name, number in (("ranks", rank), ("local_ranks_filter", local_rank)):
            chosen = self.job.setting(name)
            if chosen.value is not None and number is not None and number not in chosen.value:
                return f"{chosen.origin} {chosen.value}"
        return ""

    def warnings(self, plan: NodePlan) -> Iterator[str]:
        """Yield warnings about options that name ranks which do not exist."""
        world, tasks = plan.world, self.job.tasks
        ranks, local = self.job.setting("ranks"), self.job.setting("local_ranks_filter")
        if ranks.value is not None and ranks.value.lowest >= world.size:
            yield f"{ranks.origin}: there is no rank {ranks.value}, so no rank's output is printed"
        local_size = world.local_size if tasks is None else tasks.local_size
        # A node of services alone has no ranks.
        if local.value is not None and local.value.lowest >= local_size > 0:
            yield (
                f"{local.origin}: there is no local rank {local.value} on this node, so no rank's"
                " output is printed"
            )
        if tasks is not None:
            return
        # These count the workers of services, too.
        count = len(plan.workers)
        for option in (self.job.setting("redirects"), self.job.setting("tee")):
            named = () if option.value is None else option.value.by_local_rank
            if missing := [rank for rank in named if rank >= count]:
                yield (
                    f"{option.origin}: there is no local rank {','.join(number_ranges(missing))} on"
                    f" this node; its local ranks go from 0 to {count - 1}"
                )

    def links(self, plan: NodePlan) -> Iterator[tuple[Path, str]]:
        """Yield the symbolic links to make, each with its target."""
        if self.logs is None:
            return
        # Made by the first attempt: a run that can't start leaves the link to the previous run.
        first = plan.world.attempt == 0 and plan.world.node_rank == 0
        # Not in torchrun's layout, where programs take each folder for a run.
        if first and not self.logs.torchrun_folder:
            yield self.logs.directory / "latest", self.logs.run_id
        for worker in plan.workers if self.logs.one_file else ():
            log, _ = self.logs.files(plan, worker)
            link = self.logs.workerlog(self._local_rank(worker))
            yield link, str(log.relative_to(self.logs.directory))

    def is_logged_and_printed(self, stream: Std, local_rank: int) -> tuple[bool, bool]:
        """Return whether a worker's stream goes to a log file, and whether it is printed.

        Without --redirects and --tee both are true, if there are log files.
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
        # LOCAL_RANK may be 0 in every task, if each task sees one GPU.
        tasks = self.job.tasks
        return worker.local_rank if tasks is None else tasks.local_rank


def label_of(plan: NodePlan, worker: WorkerPlan) -> str:
    """Return the name of a worker, "rank 3" or "server 0", with the host if there are several nodes."""
    host = f" {plan.host.partition('.')[0]}" if plan.world.nodes > 1 else ""
    program = "rank" if worker.service is None else worker.service.name
    return f"{program} {worker.rank_in_program}{host}"


def check_log_folder(log_dir: Setting[str | None]) -> None:
    """Check that the folder for log files, if any, can be made and written.

    It is made with the first file, so a job that can't start leaves nothing.

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
    """Try to make a folder in ``folder``; return the error number or 0."""
    # Permissions alone don't tell: root can't write to /proc, nor everywhere on a file server.
    trial = folder / f".clusterrun-{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        # A full disk is not an error: the output is printed, and so is that log files lack lines.
        return 0 if error.errno in DISK_FULL_ERRORS else error.errno or errno.EIO
    return 0


def _hint(folder: Path, error: int) -> str:
    if error == errno.EACCES and folder.stat().st_uid == os.geteuid():
        return f"name another folder with --log-dir DIR, or run: chmod u+wx {folder}"
    return "name another folder with --log-dir DIR"
