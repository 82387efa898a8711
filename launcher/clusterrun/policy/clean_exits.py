"""Which ranks have exited with code 0 while others of their world run on. Pure.

They may have finished early, as rank 0 does not while it saves: nothing is ended. If the others wait
for them in a collective, it hangs, or fails: then these exits are what to know of it.
"""

import signal
from collections.abc import Iterable

from msgspec import Struct, field

from clusterrun.cpuset import runs
from clusterrun.loop import NEVER
from clusterrun.planning.plan import NumberedProgram
from clusterrun.policy.cause import SECONDS_OF_TOLERANCE, is_consequence
from clusterrun.policy.outcome import MAX_RANKS, EarlierExits, Exited, Killed, WorkerResult

SECONDS_UNTIL_NAMED = 60.0
"""From the first exit: in most jobs the other ranks exit within this time."""

MIN_SECONDS_WAITED = 0.25
"""An exit so close to a failure of another kind was not waited for: both ranks had just begun, or ended."""

MAX_RUNS = 8
"""Runs of ranks that one line names: every second one of 8,000 may have exited."""


class WorldExits(Struct):
    """The clean exits of one program whose ranks form a world."""

    program: NumberedProgram
    times: dict[int, float] = field(default_factory=dict)
    """When each worker exited, by its number in the job."""
    first: float = NEVER
    """The earliest of these."""
    is_named: bool = False
    """A notice has named them."""

    def add(self, number: int, at: float) -> None:
        """Take note of an exit; the first time that is known of it stays."""
        program = self.program
        if number not in self.times and program.first <= number < program.first + program.size:
            self.times[number] = at
            self.first = min(self.first, at)

    @property
    def named_at(self) -> float:
        """When to name them; NEVER if they were, or all ranks have exited."""
        is_over = self.is_named or len(self.times) == self.program.size
        return NEVER if is_over else self.first + SECONDS_UNTIL_NAMED

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
        """Begin with the attempt; ``programs``: those whose ranks form a world."""
        self._worlds = [WorldExits(each) for each in programs]

    def add(self, numbers: Iterable[int], at: float) -> None:
        """Take note that workers, by their numbers in the job, have exited with 0 at that time."""
        for number in numbers:
            for world in self._worlds:
                world.add(number, at)

    @property
    def due(self) -> float:
        """When to print ``notices``."""
        return min((each.named_at for each in self._worlds), default=NEVER)

    def notices(self, at: float) -> list[str]:
        """Return a line for each world in which ranks have exited long before others; each once."""
        found = [each for each in self._worlds if at >= each.named_at]
        for world in found:
            world.is_named = True
        return [world.notice(at) for world in found]

    @property
    def were_named(self) -> bool:
        """Whether a notice has named some."""
        return any(each.is_named for each in self._worlds)

    def before(self, cause: WorkerResult, failed_at: float) -> EarlierExits | None:
        """Return the peers of a failed worker that had exited with 0; None if that does not matter.

        It may matter if they exited shortly before, or if the worker lost a connection: then also at
        the same time, since the agent may notice the exit after the peer does.
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
                is_shortly = MIN_SECONDS_WAITED <= seconds <= SECONDS_UNTIL_NAMED
                if times and (lost_peer or is_shortly):
                    ranks, more = first_ranks(number - first for number in times)
                    more += len(ranks[MAX_RANKS:])
                    return EarlierExits(tuple(ranks[:MAX_RANKS]), more, seconds)
        return None


def _may_lack_a_peer(cause: WorkerResult) -> bool:
    """Return whether a worker may have failed because a peer is gone: by itself, or by NCCL's watchdog."""
    return isinstance(cause.exit_status, Exited) or cause.exit_status == Killed(signal.SIGABRT)


def first_ranks(numbers: Iterable[int]) -> tuple[list[int], int]:
    """Return which of these ranks one line names, and how many others there are."""
    known = sorted(numbers)
    named = runs(known)[:MAX_RUNS]
    last = int(named[-1].rpartition("-")[2])
    kept = [number for number in known if number <= last]
    return kept, len(known) - len(kept)
