"""What NCCL knows of a job's communicators: which ranks have launched fewer collectives than others.

NCCL answers queries about a running job since version 2.24, and in JSON since 2.28.7. That is its RAS
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html). One process answers
for all of the job. It counts collectives as they are launched; send, receive and what a CUDA graph
launches are not counted.

Two reports, a second apart, tell ranks that stand still from those that go on. The node that asks NCCL
compares them (``compared``), and only what differs travels: 2.2 MB of JSON for 4,096 ranks become less
than 64 KiB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from enum import Enum
from itertools import chain
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from clusterrun.bounds import (
    Bytes,
    Count,
    Line,
    Name,
    ProcessId,
    Size,
    Text,
    as_line,
    as_name,
    as_text,
    counted,
    named_ranks,
)

MOST_BYTES = 1 << 18
"""Of an encoded ``NcclState``."""

MOST_COMMUNICATORS = 64
"""Communicators of which a ``NcclState`` has the ranks; others are only counted."""

MOST_LINES = 20
"""Lines of ``findings``, but for the text of an older NCCL."""

MOST_LINES_OF_TEXT = 40
"""Lines of an older NCCL's report."""

MOST_PROCESSES_NAMED = 4
"""Processes whose rank is unknown that one line names."""

MOST_GROUPS_NAMED = 4
"""Groups of ranks that one line compares."""

IN_PROGRESS = 7
"""``ncclInProgress`` of nccl.h: not an error."""

ERRORS = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
}
"""``ncclResult_t`` of nccl.h."""


# NCCL's report, with the names of its JSON: ``rasDumpCommsToJSON`` in src/ras/client_support.cc.


class RasStatus(Struct, frozen=True):
    """The state of a rank in a communicator; each is an ``ncclResult_t``."""

    init_state: Count
    """7: it is being initialised."""
    async_error: Count


class RasRank(Struct, frozen=True):
    """A rank of a communicator whose process has answered."""

    rank: Count
    """In the communicator."""
    host: Name
    """An IP address of its node; "unknown" if NCCL has lost it."""
    pid: Annotated[int, Meta(ge=-1, lt=1 << 31)]
    """-1 if NCCL has lost it."""
    status: RasStatus
    collective_counts: dict[Name, Bytes]
    """By the name of the collective: how many this rank has launched."""


class RasMissingStatus(Struct, frozen=True):
    """Why a rank is missing; both are false if its process has answered, but not for this rank."""

    unresponsive: bool
    considered_dead: bool


class RasMissingRank(Struct, frozen=True):
    """A rank of a communicator of which NCCL has no answer."""

    rank: Count
    host: Name
    pid: Annotated[int, Meta(ge=-1, lt=1 << 31)]
    status: RasMissingStatus


class RasCommunicator(Struct, frozen=True):
    """A communicator; ``hash`` is the ``commId`` of NCCL's own log."""

    hash: Name
    size: Size
    ranks: tuple[RasRank, ...]
    missing_ranks: tuple[RasMissingRank, ...]
    secondary_hash: Name = ""


class RasReport(Struct, frozen=True):
    """The answer to one query."""

    nccl_version: Name
    communicators: tuple[RasCommunicator, ...]


# What a node answers.

Run = tuple[Count, Size, Size]
"""Processes at equal distances: the first one's number, the distance, and how many they are."""


class NcclHost(Struct, frozen=True):
    """A host as NCCL names it, and its processes."""

    address: Name
    pids: tuple[ProcessId, ...]
    """0: NCCL does not know it."""
    ranks: tuple[Count, ...] = ()
    """The rank of each in the largest communicator; () if they are not all in it."""


class EqualRanks(Struct, frozen=True, omit_defaults=True):
    """Ranks of a communicator in the same state."""

    processes: tuple[Run, ...]
    """Numbered through the hosts of ``NcclRanks``."""
    counts: dict[Name, Bytes] = {}
    """Collectives launched, those above 0; empty if the communicator's counts change."""
    init_state: Count = 0
    """What it was in both queries; 0 if that differs."""
    async_error: Count = 0


class Absence(Enum):
    """Why a rank is missing in both queries."""

    SILENT = "silent"
    DEAD = "dead"
    LEFT = "left"
    """Its process answers, and does not have the communicator."""


class MissingRanks(Struct, frozen=True):
    """Ranks of a communicator that are missing for the same reason."""

    processes: tuple[Run, ...]
    why: Absence


class NcclCommunicator(Struct, frozen=True):
    """A communicator whose ranks are not all alike."""

    hash: Name
    size: Size
    groups: tuple[EqualRanks, ...]
    """The largest first."""
    missing: tuple[MissingRanks, ...] = ()


class NcclRanks(Struct, frozen=True, tag=True):
    """What two reports have in common, and what has changed between them."""

    communicators: tuple[NcclCommunicator, ...] = ()
    hosts: tuple[NcclHost, ...] = ()
    """Of the processes in ``communicators``."""
    total: Count = 0
    """Communicators of two ranks or more, in both reports."""
    moving: Count = 0
    """Those in which a rank has launched a collective in between."""
    left_out: Count = 0
    """Those that belong to ``communicators`` and are too many."""


class NcclText(Struct, frozen=True, tag=True):
    """The report of an NCCL before 2.28.7, which has no JSON."""

    version: Name
    """ "2.27.5+cuda12.9"; "" if it does not say."""
    text: Text


class NcclSilence(Struct, frozen=True, tag=True):
    """NCCL has not answered."""

    why: Line


class NcclState(Struct, frozen=True):
    """A node's answer to the question what NCCL knows."""

    answer: NcclRanks | NcclText | NcclSilence
    is_mapped: bool = False
    """A worker of the node has loaded libnccl."""


# On the node that asks NCCL.


def compared(first: RasReport, second: RasReport) -> NcclRanks:
    """Return what differs among the ranks of each communicator, and whether it stands still.

    ``first``, ``second``: reports about a second apart. Communicators that only one of them has, and
    those of one rank, are ignored.
    """
    before = {_identity(each): each for each in first.communicators}
    pairs = [
        (before[_identity(each)], each)
        for each in second.communicators
        if _identity(each) in before and each.size > 1
    ]
    found = [_Compared(*pair) for pair in pairs]
    unlike = [each for each in found if each.is_worth_naming]
    shown = unlike[:MOST_COMMUNICATORS]
    table = _ProcessTable([each for _, each in pairs], {it for one in shown for it in one.hosts})
    return NcclRanks(
        communicators=tuple(each.with_numbers(table) for each in shown),
        hosts=table.hosts,
        total=len(found),
        moving=sum(each.is_moving for each in found),
        left_out=len(unlike) - len(shown),
    )


def encoded(state: NcclState, most: int = MOST_BYTES) -> bytes:
    """Return a state as msgpack of at most ``most`` bytes; communicators at the end are left out for it.

    ``most``: at least 256.
    """
    encode = msgspec.msgpack.encode
    while len(body := encode(state)) > most and isinstance(ranks := state.answer, NcclRanks):
        half = len(ranks.communicators) // 2
        fewer = replace(
            ranks,
            communicators=ranks.communicators[:half],
            hosts=ranks.hosts if half else (),
            left_out=ranks.left_out + len(ranks.communicators) - half,
        )
        state = replace(state, answer=fewer)
    return body


def report_of_older(text: str) -> NcclText:
    """Return what is worth reading of a report as text: from "Errors" on, 40 lines."""
    first, _, _ = text.partition("\n")
    _, _, version = first.partition("NCCL version ")
    _, heading, rest = text.rpartition("\nErrors\n")
    lines = f"Errors\n{rest}".splitlines() if heading else text.splitlines()
    # A line of hosts can be long.
    kept = (line[:400] for line in lines[:MOST_LINES_OF_TEXT])
    return NcclText(as_name(version.split(" ")[0]), as_text("\n".join(kept)))


_Process = tuple[str, int]
"""NCCL's address of the host, and the process id."""


def _identity(communicator: RasCommunicator) -> tuple[str, str]:
    return communicator.hash, communicator.secondary_hash


def _process(rank: RasRank | RasMissingRank) -> _Process:
    return rank.host, max(0, rank.pid)


class _Compared:
    """A communicator in both reports."""

    def __init__(self, earlier: RasCommunicator, later: RasCommunicator) -> None:
        self._communicator = later
        before = {each.rank: each for each in earlier.ranks}
        pairs = [(before[it.rank], it) for it in later.ranks if it.rank in before]
        self.is_moving = any(a.collective_counts != b.collective_counts for a, b in pairs)
        self._groups: dict[tuple[tuple[tuple[str, int], ...], int, int], list[_Process]] = {}
        for a, b in pairs:
            counts = {} if self.is_moving else b.collective_counts
            launched = tuple(sorted((name, count) for name, count in counts.items() if count))
            state = b.status.init_state if b.status.init_state == a.status.init_state else 0
            key = launched, state, b.status.async_error
            self._groups.setdefault(key, []).append(_process(b))
        missing_before = {each.rank for each in earlier.missing_ranks}
        self._missing: dict[Absence, list[_Process]] = {}
        for rank in later.missing_ranks:
            if rank.rank in missing_before:
                self._missing.setdefault(_absence(rank.status), []).append(_process(rank))

    @property
    def is_worth_naming(self) -> bool:
        is_bad = any(state or error not in {0, IN_PROGRESS} for _, state, error in self._groups)
        is_uneven = len({counts for counts, _, _ in self._groups}) > 1
        return bool(self._missing) or is_bad or is_uneven

    @property
    def hosts(self) -> set[str]:
        listed = chain(self._groups.values(), self._missing.values())
        return {address for processes in listed for address, _ in processes}

    def with_numbers(self, table: "_ProcessTable") -> NcclCommunicator:
        ordered = sorted(self._groups.items(), key=lambda item: -len(item[1]))
        return NcclCommunicator(
            hash=self._communicator.hash,
            size=self._communicator.size,
            groups=tuple(
                EqualRanks(table.runs(processes), dict(counts), state, error)
                for (counts, state, error), processes in ordered
            ),
            missing=tuple(MissingRanks(table.runs(it), why) for why, it in self._missing.items()),
        )


def _absence(status: RasMissingStatus) -> Absence:
    if status.considered_dead:
        return Absence.DEAD
    return Absence.SILENT if status.unresponsive else Absence.LEFT


class _ProcessTable:
    """Numbers the processes of hosts, in the order of the largest communicator."""

    def __init__(
        self, communicators: Iterable[RasCommunicator], addresses: AbstractSet[str]
    ) -> None:
        ordered = sorted(communicators, key=lambda it: -it.size)
        pids: dict[str, dict[int, int | None]] = {}
        for each in ordered:
            ranks: list[RasRank | RasMissingRank] = [*each.ranks, *each.missing_ranks]
            for rank in sorted(ranks, key=lambda it: it.rank):
                address, pid = _process(rank)
                if address in addresses:
                    in_largest = rank.rank if each is ordered[0] else None
                    pids.setdefault(address, {}).setdefault(pid, in_largest)
        self.hosts = tuple(
            NcclHost(address, tuple(ranks), _all_known(ranks.values()))
            for address, ranks in pids.items()
        )
        self._numbers = {process: number for number, process in enumerate(_processes(self.hosts))}

    def runs(self, processes: Iterable[_Process]) -> tuple[Run, ...]:
        return _as_runs(sorted({self._numbers[each] for each in processes}))


def _all_known(ranks: Iterable[int | None]) -> tuple[int, ...]:
    ranks = tuple(ranks)
    known = tuple(rank for rank in ranks if rank is not None)
    return known if len(known) == len(ranks) else ()


def _processes(hosts: Iterable[NcclHost]) -> Iterator[_Process]:
    return ((host.address, pid) for host in hosts for pid in host.pids)


def _as_runs(numbers: Sequence[int]) -> tuple[Run, ...]:
    """Return ascending numbers as runs of equal distances: one for each 8th rank, too."""
    found: list[Run] = []
    at = 0
    while at < len(numbers):
        step = numbers[at + 1] - numbers[at] if at + 1 < len(numbers) else 1
        end = at + 1
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        found.append((numbers[at], step, end - at))
        at = end
    return tuple(found)


# Where the answer is read.


def findings(state: NcclState, pids: Mapping[int, Mapping[int, int]]) -> tuple[str, ...]:
    """Return the lines for people; () if there is nothing to say.

    ``pids``: the ranks of each node by their process ids, by node rank.
    """
    match state.answer:
        case NcclSilence(why):
            line = f"NCCL does not report what the ranks have launched: {why}"
            # Most jobs that are not for NVIDIA GPUs have no NCCL.
            return (line,) if state.is_mapped else ()
        case NcclText():
            return _lines_of_older(state.answer)
        case NcclRanks():
            lines = [as_line(line) for line in _lines(state.answer, pids)]
            more = len(lines) - MOST_LINES
            return (*lines[:MOST_LINES], *([f"... {more} more"] if more > 0 else []))
        case _:
            assert_never(state.answer)


def behind(state: NcclState, pids: Mapping[int, Mapping[int, int]]) -> tuple[int, ...]:
    """Return the ranks that have launched fewer collectives than others, and stand still; in order.

    Where ranks have launched different collectives, so that none has the most of each, these are the
    ranks outside the largest group: all, if there are several largest. A process that is no known
    rank is not in the result. ``pids`` is as in ``findings``.
    """
    return _known_ranks(state, pids, _lagging(state).keys())


def still_behind(
    earlier: NcclState, later: NcclState, pids: Mapping[int, Mapping[int, int]]
) -> tuple[int, ...]:
    """Return the ranks that are behind in both states, where nobody has launched anything in between."""
    before = _lagging(earlier)
    same = {key for key, counts in _lagging(later).items() if before.get(key) == counts}
    return _known_ranks(later, pids, same)


_Counts = tuple[tuple[str, int], ...]
"""Collectives and how many were launched, by name."""


def _lines_of_older(report: NcclText) -> tuple[str, ...]:
    lines = report.text.split("\n")
    name = f"NCCL {report.version}".strip()
    is_empty = all(line.strip("= ") in {"", "Errors", "Warnings"} for line in lines)
    if is_empty:
        return (f"{name} reports no errors and no warnings",)
    return (f"{name} reports:", *lines)


def _lines(ranks: NcclRanks, pids: Mapping[int, Mapping[int, int]]) -> Iterator[str]:
    names = _Names(ranks.hosts, pids)
    yield from _missing_lines(ranks, names)
    yield from _error_lines(ranks, names)
    for communicator in ranks.communicators:
        yield from _communicator_lines(communicator, names)
    if ranks.left_out:
        yield f"NCCL: the ranks of {counted(ranks.left_out, 'more communicator')} differ, too"
    if ranks.communicators or ranks.left_out or not ranks.total:
        return
    if ranks.moving:
        of_all = counted(ranks.total, "communicator")
        yield f"NCCL: {ranks.moving} of {of_all} {'moves' if ranks.moving == 1 else 'move'}"
        return
    yield (
        "all ranks have launched the same collectives:"
        " a network, a GPU, send/recv or a CUDA graph keeps them waiting"
    )


def _missing_lines(ranks: NcclRanks, names: "_Names") -> Iterator[str]:
    """Yield who is missing, whatever the communicators."""
    by_reason: dict[Absence, set[int]] = {}
    for communicator in ranks.communicators:
        for each in communicator.missing:
            by_reason.setdefault(each.why, set()).update(names.numbers(each.processes))
    if dead := by_reason.get(Absence.DEAD, set()):
        yield f"{names.of(dead)} {_are(dead)} dead for NCCL"
    if silent := by_reason.get(Absence.SILENT, set()) - dead:
        yield f"{names.of(silent)} {_do(silent)} not answer NCCL"


def _error_lines(ranks: NcclRanks, names: "_Names") -> Iterator[str]:
    by_error: dict[int, set[int]] = {}
    for communicator in ranks.communicators:
        for group in communicator.groups:
            if group.async_error not in {0, IN_PROGRESS}:
                members = names.numbers(group.processes)
                by_error.setdefault(group.async_error, set()).update(members)
    for error, members in sorted(by_error.items()):
        yield f"{names.of(members)} {_have(members)} {_error(error)}"


def _communicator_lines(communicator: NcclCommunicator, names: "_Names") -> Iterator[str]:
    name = f"communicator {communicator.hash} of {communicator.size} ranks"
    for each in communicator.missing:
        if each.why is Absence.LEFT:
            left = names.numbers(each.processes)
            has = _have(left)
            yield f"{names.of(left)} {has} not joined the {name}, or {has} destroyed it"
    by_state: dict[int, set[int]] = {}
    for group in communicator.groups:
        if group.init_state:
            members = names.numbers(group.processes)
            by_state.setdefault(group.init_state, set()).update(members)
    for state, members in sorted(by_state.items(), reverse=True):
        if state == IN_PROGRESS:
            is_one = len(members) == 1
            yield f"{names.of(members)} still {'initialises' if is_one else 'initialise'} the {name}"
        else:
            yield f"{names.of(members)} failed to initialise the {name}: {_error(state)}"
    if not by_state:
        yield from _count_lines(communicator, names, name)


def _count_lines(communicator: NcclCommunicator, names: "_Names", name: str) -> Iterator[str]:
    groups = _by_counts(communicator, names.processes)
    if len(groups) < 2:
        return
    most = _most_of_each(groups)
    done = groups.get(most)
    if done is None:
        parts = [
            f"{names.of(members)}: {', '.join(f'{each} {n}' for each, n in counts) or 'nothing'}"
            for counts, members in list(groups.items())[:MOST_GROUPS_NAMED]
        ]
        if len(groups) > MOST_GROUPS_NAMED:
            parts.append("...")
        yield f"the ranks launched different collectives: {'; '.join(parts)} ({name})"
        return
    for counts, late in groups.items():
        launched = dict(counts)
        for collective, number in most:
            own = launched.get(collective, 0)
            if own < number:
                yield (
                    f"{names.of(done)} launched {collective} {counted(number, 'time')},"
                    f" {names.of(late)} {own}: {names.of(late)} {_have(late)} not launched it ({name})"
                )


def _by_counts(communicator: NcclCommunicator, processes: int) -> dict[_Counts, set[int]]:
    """Return the numbers of processes, below ``processes``, by what they have launched.

    The largest group is the first.
    """
    found: dict[_Counts, set[int]] = {}
    for group in communicator.groups:
        counts = tuple(sorted(group.counts.items()))
        found.setdefault(counts, set()).update(_numbers(group.processes, processes))
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _most_of_each(groups: Iterable[_Counts]) -> _Counts:
    most: dict[str, int] = {}
    for name, number in chain.from_iterable(groups):
        most[name] = max(number, most.get(name, 0))
    return tuple(sorted(most.items()))


def _lagging(state: NcclState) -> dict[tuple[str, _Process], frozenset[_Counts]]:
    """Return the processes that are behind, by communicator, with the counts of all of its ranks."""
    found: dict[tuple[str, _Process], frozenset[_Counts]] = {}
    if not isinstance(state.answer, NcclRanks):
        return found
    processes = tuple(_processes(state.answer.hosts))
    for communicator in state.answer.communicators:
        groups = _by_counts(communicator, len(processes))
        if len(groups) < 2 or any(group.init_state for group in communicator.groups):
            continue
        most = _most_of_each(groups)
        largest = max(map(len, groups.values()))
        largest_ones = [counts for counts, it in groups.items() if len(it) == largest]
        ahead = most if most in groups else largest_ones[0] if len(largest_ones) == 1 else None
        for counts, members in groups.items():
            if counts != ahead:
                keys = ((communicator.hash, processes[number]) for number in members)
                found |= dict.fromkeys(keys, frozenset(groups))
    return found


def _known_ranks(
    state: NcclState,
    pids: Mapping[int, Mapping[int, int]],
    keys: Iterable[tuple[str, _Process]],
) -> tuple[int, ...]:
    hosts = state.answer.hosts if isinstance(state.answer, NcclRanks) else ()
    ranks = _ranks_of(hosts, pids)
    return tuple(sorted({ranks[process] for _, process in keys if process in ranks}))


def _ranks_of(
    hosts: Iterable[NcclHost], pids: Mapping[int, Mapping[int, int]]
) -> dict[_Process, int]:
    """Return the ranks of processes: NCCL knows addresses and pids, the job nodes and pids."""
    nodes = _Nodes(pids)
    found: dict[_Process, int] = {}
    for host in hosts:
        own = nodes.ranks_on(host)
        found |= {(host.address, pid): own[pid] for pid in host.pids if pid in own}
    return found


class _Nodes:
    """Recognises hosts by the process ids of the job's nodes."""

    def __init__(self, pids: Mapping[int, Mapping[int, int]]) -> None:
        self._pids = pids
        self._with_pid: dict[int, list[int]] = {}
        self._with_rank: dict[tuple[int, int], int] = {}
        for node, ranks in pids.items():
            for pid, rank in ranks.items():
                self._with_pid.setdefault(pid, []).append(node)
                self._with_rank[pid, rank] = node

    def ranks_on(self, host: NcclHost) -> Mapping[int, int]:
        """Return the ranks of a host's processes by pid; {} if it is not clear which node it is.

        In a communicator of all ranks, torch's have the same numbers as in the job: these decide, as
        nodes in containers have equal pids. Otherwise it is the only node that has all of the host's
        pids. With an agent for each of a scheduler's tasks, several nodes are on one host: together
        they have its pids, each once.
        """
        on_host = {pid for pid in host.pids if pid}
        by_rank = {self._with_rank.get(each) for each in zip(host.pids, host.ranks, strict=False)}
        if len(by_rank) == 1 and (node := by_rank.pop()) is not None:
            return self._pids[node]
        nodes = {node for pid in on_host for node in self._with_pid.get(pid, ())}
        found = [self._pids[node] for node in nodes]
        fits = [own for own in found if on_host <= own.keys()]
        if fits:
            return fits[0] if len(fits) == 1 else {}
        together = {pid: rank for own in found for pid, rank in own.items()}
        is_exact = sum(map(len, found)) == len(together) and together.keys() == on_host
        return together if is_exact else {}


class _Names:
    """Names processes in messages: "ranks 0-3", "pid 4711 on 10.0.0.2"."""

    def __init__(self, hosts: tuple[NcclHost, ...], pids: Mapping[int, Mapping[int, int]]) -> None:
        self._processes = tuple(_processes(hosts))
        self._ranks = _ranks_of(hosts, pids)

    @property
    def processes(self) -> int:
        """How many there are."""
        return len(self._processes)

    def numbers(self, runs: Iterable[Run]) -> set[int]:
        return _numbers(runs, len(self._processes))

    def of(self, numbers: Iterable[int]) -> str:
        processes = [self._processes[each] for each in sorted(numbers)]
        ranks = {self._ranks[each] for each in processes if each in self._ranks}
        others = [each for each in processes if each not in self._ranks]
        parts = [named_ranks(ranks)] if ranks else []
        parts += [_pid_on(*each) for each in others[:MOST_PROCESSES_NAMED]]
        if len(others) > MOST_PROCESSES_NAMED:
            more = len(others) - MOST_PROCESSES_NAMED
            parts.append(f"{more} more process{'' if more == 1 else 'es'}")
        return ", ".join(parts)


def _pid_on(address: str, pid: int) -> str:
    return f"pid {pid} on {address}" if pid else "a process that NCCL has lost"


def _numbers(runs: Iterable[Run], limit: int) -> set[int]:
    """Return the numbers in runs that are below ``limit``, the number of processes."""
    return {
        number
        for first, step, length in runs
        for number in range(first, min(first + step * length, limit), step)
    }


def _error(number: int) -> str:
    name = ERRORS.get(number)
    return f"NCCL error {number}" + (f" ({name})" if name else "")


def _are(members: Sized) -> str:
    return "is" if len(members) == 1 else "are"


def _do(members: Sized) -> str:
    return "does" if len(members) == 1 else "do"


def _have(members: Sized) -> str:
    return "has" if len(members) == 1 else "have"
