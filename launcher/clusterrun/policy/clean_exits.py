"""Ranks that have exited with code 0 while other ranks of their world still run. Pure.

This is not an error: rank 0 may take longer because it saves a checkpoint. But if the other ranks then
hang or fail in a collective, these exits are the explanation.
"""

import signal
from collections.abc import Iterable

from msgspec import Struct, field

from clusterrun.cpuset import number_ranges
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.cause import SECONDS_OF_TOLERANCE, is_consequence
from clusterrun.policy.outcome import MAX_RANKS, EarlierExits, Exited, Killed, WorkerResult

SECONDS_UNTIL_REPORTED = 60.0
"""Time after the first exit in which the other ranks of most jobs exit."""

MIN_SECONDS_WAITED = 0.25
"""An exit this close to a failure does not explain it: the failed worker did not wait for the peer."""

MAX_RUNS = 8
"""Runs of ranks in one line: every second of 8,000 ranks may have exited."""


class WorldExits(Struct):
    """The clean exits of one program whose ranks form a world."""

    program: NumberedProgram
    times: dict[int, float] = field(default_factory=dict)
    """When each worker exited, by its number in the job."""
    first: float = NEVER
    """The time of the first exit."""
    is_reported: bool = False

    def add(self, number: int, at: float) -> None:
        """Add an exit, unless one of this worker is known."""
        program = self.program
        if number not in self.times and program.first <= number < program.first + program.size:
            self.times[number] = at
            self.first = min(self.first, at)

    @property
    def due(self) -> float:
        """When to print ``notice``; NEVER if it was printed or all ranks have exited."""
        is_over = self.is_reported or len(self.times) == self.program.size
        return NEVER if is_over else self.first + SECONDS_UNTIL_REPORTED

    def notice(self, at: float) -> str:
        """Return "rank 1 exited with code 0 60 s ago; ranks 0, 2-3 still run"."""
        program = self.program
        everyone = range(program.first, program.first + program.size)
        others = [number for number in everyone if number not in self.times]
        since, last = round(at - self.first), round(at - max(self.times.values()))
        when = f" {since} s ago" if since == last else f", the first {since} s ago"
        run = "still runs" if len(others) == 1 else "still run"
        return f"{self._named(self.times)} exited with code 0{when}; {self._named(others)} {run}"

    def _named(self, numbers: Iterable[int]) -> str:
        first, more = first_ranks(numbers)
        return self.program.named(first) + (f" and {more} more" if more else "")


class CleanExits:
    """The clean exits of an attempt."""

    def __init__(self, programs: Iterable[NumberedProgram]) -> None:
        """Begin an attempt; ``programs`` are the programs whose ranks form a world."""
        self._worlds = [WorldExits(each) for each in programs]

    def add(self, numbers: Iterable[int], at: float) -> None:
        """Add workers, by their numbers in the job, that exited with 0 at this time."""
        for number in numbers:
            for world in self._worlds:
                world.add(number, at)

    @property
    def due(self) -> float:
        """When to print ``notices``."""
        return min((each.due for each in self._worlds), default=NEVER)

    def notices(self, at: float) -> list[str]:
        """Return the notices that are due; each is returned once."""
        found = [each for each in self._worlds if at >= each.due]
        for world in found:
            world.is_reported = True
        return [world.notice(at) for world in found]

    @property
    def are_reported(self) -> bool:
        """Whether a notice was printed."""
        return any(each.is_reported for each in self._worlds)

    def before(self, cause: WorkerResult, failed_at: float) -> EarlierExits | None:
        """Return the peers that had exited with 0 if they may explain the failure of a worker.

        They may if they exited shortly before it. If the worker lost a connection, they also may if they
        exited at the same time, because the agent may notice the exit later than the worker.
        """
        if failed_at == NEVER or not _may_lack_a_peer(cause):
            return None
        lost_peer = is_consequence(cause)
        latest = failed_at + (SECONDS_OF_TOLERANCE if lost_peer else 0.0)
        for world in self._worlds:
            first = world.program.first
            if first <= cause.rank < first + world.program.size:
                times = {rank: at for rank, at in world.times.items() if at <= latest}
                seconds = max(0.0, failed_at - max(times.values(), default=-NEVER))
                is_shortly = MIN_SECONDS_WAITED <= seconds <= SECONDS_UNTIL_REPORTED
                if times and (lost_peer or is_shortly):
                    ranks, more = first_ranks(number - first for number in times)
                    more += len(ranks[MAX_RANKS:])
                    return EarlierExits(tuple(ranks[:MAX_RANKS]), more, seconds)
        return None


def _may_lack_a_peer(cause: WorkerResult) -> bool:
    """Return whether a lost peer may be why the worker exited, or NCCL's watchdog aborted it."""
    return isinstance(cause.exit_status, Exited) or cause.exit_status == Killed(signal.SIGABRT)


def first_ranks(numbers: Iterable[int]) -> tuple[list[int], int]:
    """Return the ranks in the first ``MAX_RUNS`` runs, and the number of the others."""
    known = sorted(numbers)
    last = int(number_ranges(known)[:MAX_RUNS][-1].rpartition("-")[2])
    kept = [number for number in known if number <= last]
    return kept, len(known) - len(kept)
