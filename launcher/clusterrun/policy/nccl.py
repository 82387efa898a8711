"""Which ranks have launched fewer NCCL collectives than others, by the reports of NCCL's RAS.

RAS (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html) answers queries
about a running job since NCCL 2.24, and in JSON since 2.28.7. One process answers for the whole job. NCCL
counts collectives when they are launched; it does not count send and receive, or launches by a CUDA graph.

Two reports, a second apart, show which ranks make no progress. The node that queries NCCL compares the
reports, and sends other nodes only lines and the numbers of the ranks that are behind.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Annotated
from zlib import crc32

import msgspec
from msgspec import Meta, Struct

from clusterrun.bounds import Bytes, Count, Line, Name, Size, as_line, counted
from clusterrun.policy.outcome import MAX_RANKS, Ranks

MAX_LINES = 20

MAX_LINES_OF_TEXT = 40
"""Lines of a report of an NCCL before 2.28.7."""

MAX_LINE_LENGTH = 1000
"""Characters: an answer has room for 40 lines in any script."""

MAX_NAMES = 200
"""Characters for one group of ranks: every second of 4,096 ranks takes 11,000."""

IN_PROGRESS = 7
"""``ncclInProgress``, an ``ncclResult_t`` of nccl.h that is not an error."""

EQUAL = (
    "all ranks have launched the same collectives:"
    " a network, a GPU, send/recv or a CUDA graph keeps them waiting"
)

MOVING = "collectives are still launched by"

_Process = tuple[str, int]
"""The host's address in NCCL, and the process id."""

_Counts = tuple[tuple[str, int], ...]
"""The names and numbers of the collectives that a rank has launched, without zeros."""


# The report of NCCL, with the names in its JSON: ``rasDumpCommsToJSON`` in src/ras/client_support.cc.


class RasProcess(Struct, frozen=True):
    """A rank of a communicator, and its process."""

    rank: Count
    """In the communicator."""
    host: Name
    """An IP address of the node; "unknown" if NCCL has lost the process."""
    pid: Annotated[int, Meta(ge=-1, lt=1 << 31)]
    """-1 if NCCL has lost the process."""

    @property
    def process(self) -> _Process:
        return self.host, self.pid


class RasStatus(Struct, frozen=True):
    """The state of a rank in a communicator; each is an ``ncclResult_t``."""

    init_state: Count
    """``IN_PROGRESS`` while the rank is initialised."""
    async_error: Count


class RasRank(RasProcess, frozen=True):
    """A rank whose process has answered."""

    status: RasStatus
    collective_counts: dict[Name, Bytes]
    """The number of launches by the name of the collective."""

    @property
    def launched(self) -> _Counts:
        return tuple(sorted(item for item in self.collective_counts.items() if item[1]))


class RasMissingStatus(Struct, frozen=True):
    """Why a rank is missing; both are false if its process answered, but not for this rank."""

    unresponsive: bool
    considered_dead: bool


class RasMissingRank(RasProcess, frozen=True):
    """A rank without an answer."""

    status: RasMissingStatus


class RasCommunicator(Struct, frozen=True):
    """A communicator; ``hash`` is the ``commId`` in NCCL's log."""

    hash: Name
    size: Size
    ranks: tuple[RasRank, ...]
    missing_ranks: tuple[RasMissingRank, ...]
    secondary_hash: Name = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.hash, self.secondary_hash

    def __str__(self) -> str:
        return f"communicator {self.hash} of {counted(self.size, 'rank')}"


class RasReport(Struct, frozen=True):
    """The answer to one query."""

    communicators: tuple[RasCommunicator, ...]


class NcclWorld(Struct, frozen=True):
    """The ranks of the program that a query is about."""

    size: int
    """WORLD_SIZE."""
    first: int
    """The number in the job of rank 0."""
    named: Callable[[Iterable[int]], str]
    """Names workers by their numbers in the job: "ranks 0-3"."""
    pids: Mapping[int, int]
    """The numbers in the job of the workers on this node, by process id."""


class NcclState(Struct, frozen=True):
    """What a node that has queried NCCL sends to other nodes."""

    lines: Annotated[tuple[Line, ...], Meta(max_length=MAX_LINES_OF_TEXT)] = ()
    """Lines for the user."""
    behind: Ranks = ()
    """The numbers in the job of the ranks that have launched fewer collectives and make no progress.

    If the ranks of a communicator have launched different collectives, all of them are in it.
    """
    counts: Name = ""
    """A digest of the counts of all communicators if a rank is behind in one; "" if none is."""


def compared(first: RasReport, second: RasReport, world: NcclWorld) -> NcclState:
    """Return the state of the ranks by two reports, about a second apart.

    Communicators that only one report has, or of one rank, are ignored. The counts of a communicator are
    not compared if one of its processes has launched a collective between the reports.
    """
    names = _Names(second, world)
    before = {each.key: each for each in first.communicators}
    both = [it for it in second.communicators if it.key in before and it.size > 1]
    found: dict[str, set[_Process]] = {}
    for each in both:
        for what, process in _findings(before[each.key], each):
            found.setdefault(what, set()).add(process)
    lines = [f"{what} {names.of(processes)}" for what, processes in found.items()]
    moving = found.get(MOVING, set())
    behind: set[_Process] = set()
    for each in both:
        if any(it.status.init_state or it.process in moving for it in each.ranks):
            continue
        groups = _by_counts(each)
        if len(groups) > 1:
            # The largest count of each name comes last and replaces the others.
            most = tuple(dict(sorted(chain.from_iterable(groups))).items())
            behind.update(*(processes for it, processes in groups.items() if it != most))
            lines.append(_difference(each, groups, most, names))
    if both and not lines and not any(it.missing_ranks for it in both):
        lines.append(EQUAL)
    # Ranks of other communicators may make progress.
    counts = sorted(
        (it.key, sorted((rank.rank, rank.launched) for rank in it.ranks)) for it in both
    )
    digest = f"{crc32(msgspec.msgpack.encode(counts)):08x}" if behind else ""
    return NcclState(_limited(lines, MAX_LINES), names.numbers_of(behind)[:MAX_RANKS], digest)


def state_of_text(text: str) -> NcclState:
    """Return the report of an NCCL before 2.28.7, from its heading "Errors" on."""
    first, _, _ = text.partition("\n")
    _, _, version = first.partition("NCCL version ")
    name = f"NCCL {version.split(' ')[0]}".strip()
    _, heading, rest = text.rpartition("\nErrors\n")
    lines = f"Errors\n{rest}".splitlines() if heading else text.splitlines()
    if all(line.strip("= ") in {"", "Errors", "Warnings"} for line in lines):
        return NcclState((as_line(f"{name} reports no errors and no warnings"),))
    return NcclState(_limited([f"{name} reports:", *lines], MAX_LINES_OF_TEXT))


def in_words(state: NcclState) -> str:
    """Return the lines below a heading; "" if there are none."""
    return "\n".join(["NCCL:", *(f"  {line}" for line in state.lines)]) if state.lines else ""


def _findings(earlier: RasCommunicator, later: RasCommunicator) -> Iterator[tuple[str, _Process]]:
    """Yield the beginning of a line, and a process that belongs in this line."""
    missing = {each.rank for each in earlier.missing_ranks}
    for gone in later.missing_ranks:
        if gone.rank in missing and gone.status.considered_dead:
            yield "considered dead by NCCL:", gone.process
        elif gone.rank in missing and gone.status.unresponsive:
            yield "NCCL gets no answer from", gone.process
    before = {each.rank: each.collective_counts for each in earlier.ranks}
    for rank in later.ranks:
        for error in {rank.status.init_state, rank.status.async_error} - {0, IN_PROGRESS}:
            yield f"NCCL error {error} on", rank.process
        if rank.status.init_state == IN_PROGRESS:
            yield f"{later} is still being initialised by", rank.process
        if before.get(rank.rank, rank.collective_counts) != rank.collective_counts:
            yield MOVING, rank.process


def _by_counts(communicator: RasCommunicator) -> dict[_Counts, set[_Process]]:
    found: dict[_Counts, set[_Process]] = {}
    for rank in communicator.ranks:
        found.setdefault(rank.launched, set()).add(rank.process)
    return found


def _difference(
    communicator: RasCommunicator,
    groups: Mapping[_Counts, set[_Process]],
    most: _Counts,
    names: "_Names",
) -> str:
    """Return the line that compares ranks: first the ranks that are ahead, then the largest group."""
    unequal = [name for name, _ in most if len({dict(it).get(name) for it in groups}) > 1]
    clauses = []
    for counts in sorted(groups, key=lambda it: (it != most, -len(groups[it]))):
        times = (f"{name} {counted(dict(counts).get(name, 0), 'time')}" for name in unequal)
        clauses.append(f"{names.of(groups[counts])} launched {', '.join(times)}")
    if most in groups:
        clauses[1] = f"behind: {clauses[1]}"
    else:
        clauses[0] = f"different collectives: {clauses[0]}"
    return f"{communicator}: {'; '.join(clauses)}"


class _Names:
    """The names of processes.

    Ranks are known from a communicator of the size of the world, such as torch's default group, because
    torch sorts the ranks of a group. Without such a communicator, only the workers of this node are known,
    by process id, if a single host has all these ids.
    """

    def __init__(self, report: RasReport, world: NcclWorld) -> None:
        self._named = world.named
        found: dict[_Process, set[int]] = {}
        pids: dict[str, set[int]] = {}
        for communicator in report.communicators:
            for each in (*communicator.ranks, *communicator.missing_ranks):
                pids.setdefault(each.host, set()).add(each.pid)
                if communicator.size == world.size and each.pid > 0:
                    found.setdefault(each.process, set()).add(world.first + each.rank)
        # Processes in two containers may have the same address and process id.
        self._numbers = {it: numbers.pop() for it, numbers in found.items() if len(numbers) == 1}
        hosts = [host for host, them in pids.items() if world.pids.keys() <= them]
        if not found and len(hosts) == 1:
            self._numbers = {(hosts[0], pid): number for pid, number in world.pids.items()}

    def numbers_of(self, processes: Iterable[_Process]) -> tuple[int, ...]:
        """Return the numbers in the job of the processes that are known."""
        return tuple(sorted({self._numbers[it] for it in processes if it in self._numbers}))

    def of(self, processes: Collection[_Process]) -> str:
        known = self.numbers_of(processes)
        words = [self._named(known)] if known else []
        for host, pid in sorted(it for it in processes if it not in self._numbers):
            words.append(f"pid {pid} on {host}" if pid > 0 else "a process that NCCL has lost")
        return _cut(", ".join(words), MAX_NAMES)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def _limited(lines: list[str], most: int) -> tuple[str, ...]:
    kept = tuple(_cut(as_line(line), MAX_LINE_LENGTH) for line in lines)
    return kept if len(kept) <= most else (*kept[: most - 1], f"... {len(kept) - most + 1} more")
