"""Where each worker's output goes, and the prefix of its lines: decided from the job alone. Pure."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from clusterrun.domain.cpuset import runs
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.streams import Std, StreamChoice
from clusterrun.job.job import Job
from clusterrun.workers.relay.log_layout import LogLayout


class Screen(Struct, frozen=True):
    """The launcher's stdout and stderr (descriptors), and how workers' lines look there."""

    stdout: int
    stderr: int
    colour: bool
    """Colour the prefixes, on whichever of the two is a terminal."""
    prefix: bool
    """False for a job of one worker: its bytes are written as they come."""
    merged: bool = False
    """Other processes print to the same place: no colours and no live line, even on a terminal."""
    progress_interval: float = 10.0
    """Seconds between lines with a progress bar's state, where it is not drawn; 0: none."""


class Destination(Struct, frozen=True):
    """Where one stream of a worker goes: to the screen, to its log file, or to both."""

    log: Path | None
    shown: bool = True
    shown_without_log: bool = False
    """Shown only if the log file can't be written."""
    filtered: Path | None = None
    """Shown lines that contain one of ``filters`` go to this file, too."""
    filters: tuple[str, ...] = ()


class WorkerOutput(Struct, frozen=True):
    """The pipes of one worker, and where their output goes."""

    local_rank: LocalRank
    label: str
    """Its name in messages: "rank 3"."""
    prefix: str
    """What its lines begin with: "[rank 3] "."""
    stdout: int | None
    """The read end of its pipe; None where the stream is the terminal's own."""
    stderr: int | None
    stdout_to: Destination
    stderr_to: Destination
    error_file: Path | None
    """Its TORCHELASTIC_ERROR_FILE."""


NO_STREAM = StreamChoice(Std.NONE, {})
ALL_STREAMS = StreamChoice(Std.ALL, {})


class Routes(Struct, frozen=True):
    """Where a job's output goes; ``logs``: the layout of its files, None: there are none."""

    job: Job
    logs: LogLayout | None

    def destinations(self, plan: NodePlan, worker: WorkerPlan) -> tuple[Destination, Destination]:
        filters = (
            self.job.output.duplicate_stdout_filters,
            self.job.output.duplicate_stderr_filters,
        )
        files = self.logs.files(plan, worker) if self.logs else (None, None)
        filtered = self.logs.filtered_files(plan) if self.logs else (None, None)
        ways = zip((Std.OUT, Std.ERR), files, filtered, filters, strict=True)
        out, err = (self._destination(worker, *way) for way in ways)
        return out, err

    def relayed(self, plan: NodePlan, worker: WorkerPlan) -> Std:
        """Return the streams that must go through the relay even if the worker could have the terminal."""
        if self.job.output.log_line_prefix_template:
            return Std.ALL
        out, err = self.destinations(plan, worker)
        return (Std.OUT if _needs_relay(out) else Std.NONE) | (
            Std.ERR if _needs_relay(err) else Std.NONE
        )

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
            "role_name": plan.env.get("ROLE_NAME", ""),
            "host": plan.host.partition(".")[0],
            "node_rank": plan.world.node_rank,
        }
        return Template(template).safe_substitute(values)

    def shows(self, stream: Std, rank: int, local_rank: int) -> bool:
        return not (self._only_in_file(stream, local_rank) or self.hidden_by(rank, local_rank))

    def hidden_by(self, rank: int, local_rank: int | None) -> str:
        """Return what keeps a worker's lines off the screen, "--ranks 0"; "" if nothing does.

        ``local_rank``: None if it is unknown; then only --ranks counts.
        """
        for name, number in (("ranks", rank), ("local_ranks_filter", local_rank)):
            chosen = self.job.fact(name)
            if chosen.value is not None and number is not None and number not in chosen.value:
                return f"{chosen.origin} {chosen.value}"
        return ""

    def remarks(self, plan: NodePlan) -> Iterator[str]:
        """Yield warnings about options that name ranks which do not exist."""
        world = plan.world
        ranks, local = self.job.fact("ranks"), self.job.fact("local_ranks_filter")
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
        for option in (self.job.fact("redirects"), self.job.fact("tee")):
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

    def _destination(
        self,
        worker: WorkerPlan,
        stream: Std,
        file: Path | None,
        filtered: Path | None,
        filters: tuple[str, ...],
    ) -> Destination:
        local_rank = self._local_rank(worker)
        only_in_file = self._only_in_file(stream, local_rank)
        tees = stream in self._choices()[1].of(local_rank)
        hidden = self.hidden_by(worker.rank, local_rank) != ""
        return Destination(
            log=file if tees or only_in_file else None,
            shown=not hidden and not only_in_file,
            shown_without_log=not hidden and only_in_file,
            filtered=filtered if filters and tees and not hidden else None,
            filters=filters,
        )

    def _only_in_file(self, stream: Std, local_rank: int) -> bool:
        redirects, tee = self._choices()
        redirected = stream in redirects.of(local_rank) and stream not in tee.of(local_rank)
        return self.logs is not None and redirected

    def _choices(self) -> tuple[StreamChoice, StreamChoice]:
        """Return what goes to files only, and what goes there too: everything if no option is set."""
        redirects, tee = self.job.files.redirects, self.job.files.tee
        if redirects is None and tee is None:
            return NO_STREAM, ALL_STREAMS
        return redirects or NO_STREAM, tee or NO_STREAM

    def _local_rank(self, worker: WorkerPlan) -> int:
        # LOCAL_RANK itself may be 0 in every task, where each sees one GPU.
        tasks = self.job.tasks
        return worker.local_rank if tasks is None else tasks.local_rank


def label_of(plan: NodePlan, worker: WorkerPlan) -> str:
    """Return the name of a worker, with the host where there are several."""
    host = f" {plan.host.partition('.')[0]}" if plan.world.nodes > 1 else ""
    return f"rank {worker.rank}{host}"


def _needs_relay(to: Destination) -> bool:
    return to.log is not None or not to.shown or to.filtered is not None
