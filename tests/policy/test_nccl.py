"""The state of ranks by two reports of NCCL."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import pytest
from clusterrun.bounds import named_ranks
from clusterrun.policy.nccl import (
    EQUAL,
    MAX_LINES,
    MAX_LINES_OF_TEXT,
    NcclState,
    NcclWorld,
    RasCommunicator,
    RasMissingRank,
    RasMissingStatus,
    RasRank,
    RasReport,
    RasStatus,
    compared,
    state_of_text,
)

WORLD = NcclWorld(size=8, first=0, named=named_ranks, pids={})
NAME = "communicator 0xae94 of 8 ranks"


class Rank(NamedTuple):
    """The state of a rank in a report."""

    launched: Mapping[str, int] = {"AllReduce": 1204, "Broadcast": 1, "Reduce": 0}
    init: int = 0
    error: int = 0
    missing: str = ""
    """"silent", "dead", "left", "lost"."""


USUAL = Rank()
LATE = Rank({"AllReduce": 1203, "Broadcast": 1})
AHEAD = Rank({"AllReduce": 1205, "Broadcast": 1})
OTHER = Rank({"AllReduce": 1203, "Broadcast": 1, "AllGather": 1})
NEW = Rank({}, init=7)
SILENT, DEAD, LEFT, LOST = (Rank(missing=why) for why in ("silent", "dead", "left", "lost"))


def communicator(
    *ranks: Rank, name: str = "0xae94", first_pid: int = 100, step: int = 1, net: int = 0
) -> RasCommunicator:
    """Return a communicator whose processes have ascending pids, four on each host."""
    here, gone = [], []
    for number, rank in enumerate(ranks):
        pid = first_pid + step * number
        host = f"10.{net}.{pid // 1024}.{pid // 4 % 256}"
        if not rank.missing:
            state = RasStatus(rank.init, rank.error)
            here.append(RasRank(number, host, pid, state, dict(rank.launched)))
            continue
        if rank.missing == "lost":
            host, pid = "unknown", -1
        missing = RasMissingStatus(rank.missing != "left", rank.missing == "dead")
        gone.append(RasMissingRank(number, host, pid, missing))
    return RasCommunicator(name, len(ranks), tuple(here), tuple(gone))


def changed(**changes: Rank) -> list[Rank]:
    """Return eight ranks; ``changes`` are ranks by names such as "r7"."""
    return [changes.get(f"r{number}", USUAL) for number in range(8)]


def state(
    first: Sequence[Rank], second: Sequence[Rank] = (), world: NcclWorld = WORLD
) -> NcclState:
    """Return the state of one communicator."""
    return state_of([communicator(*first)], [communicator(*(second or first))], world)


def state_of(
    first: Sequence[RasCommunicator],
    second: Sequence[RasCommunicator] = (),
    world: NcclWorld = WORLD,
) -> NcclState:
    return compared(RasReport(tuple(first)), RasReport(tuple(second or first)), world)


BEHIND_7 = (
    f"{NAME}: ranks 0-6 launched AllReduce 1204 times; behind: rank 7 launched AllReduce 1203 times"
)
ALL = tuple(range(8))

# Name: the state, its lines, the ranks that are behind.
ROWS: dict[str, tuple[NcclState, list[str], tuple[int, ...]]] = {
    "one is behind": (state(changed(r7=LATE)), [BEHIND_7], (7,)),
    "three are behind, in different collectives": (
        state(changed(r0=LATE, r5=LATE, r3=Rank({"AllReduce": 1204}))),
        [
            (
                f"{NAME}: ranks 1-2, 4, 6-7 launched AllReduce 1204 times, Broadcast 1 time;"
                " behind: ranks 0, 5 launched AllReduce 1203 times, Broadcast 1 time;"
                " rank 3 launched AllReduce 1204 times, Broadcast 0 times"
            )
        ],
        (0, 3, 5),
    ),
    "one is ahead": (
        state(changed(r2=AHEAD)),
        [
            (
                f"{NAME}: rank 2 launched AllReduce 1205 times;"
                " behind: ranks 0-1, 3-7 launched AllReduce 1204 times"
            )
        ],
        (0, 1, 3, 4, 5, 6, 7),
    ),
    "different collectives": (
        state(changed(r0=OTHER)),
        [
            (
                f"{NAME}: different collectives:"
                " ranks 1-7 launched AllGather 0 times, AllReduce 1204 times;"
                " rank 0 launched AllGather 1 time, AllReduce 1203 times"
            )
        ],
        ALL,
    ),
    "missing and dead": (
        state(changed(r5=SILENT, r6=SILENT, r1=DEAD)),
        ["considered dead by NCCL: rank 1", "NCCL gets no answer from ranks 5-6"],
        (),
    ),
    "missing in the second report only": (state(changed(), changed(r5=SILENT)), [], ()),
    "left": (state(changed(r5=LEFT)), [], ()),
    "lost": (
        state(changed(r5=LOST)),
        ["NCCL gets no answer from a process that NCCL has lost"],
        (),
    ),
    "silent in 500 communicators": (
        state_of([communicator(*changed(r5=SILENT), name=f"0x{n}") for n in range(500)]),
        ["NCCL gets no answer from rank 5"],
        (),
    ),
    "initialising": (
        state([*[NEW] * 7, SILENT]),
        [
            "NCCL gets no answer from rank 7",
            f"{NAME} is still being initialised by ranks 0-6",
        ],
        (),
    ),
    "one initialises": (
        state(changed(r3=NEW)),
        [f"{NAME} is still being initialised by rank 3"],
        (),
    ),
    "initialised meanwhile": (state([NEW] * 8, [Rank({})] * 8), [EQUAL], ()),
    "errors": (
        state(changed(r2=Rank(init=2), r3=Rank(error=6), r4=Rank(error=6), r5=Rank(error=7))),
        ["NCCL error 2 on rank 2", "NCCL error 6 on ranks 3-4"],
        (),
    ),
    "counts move": (
        state(changed(r6=LATE), changed(r6=LATE, r7=AHEAD)),
        ["collectives are still launched by rank 7"],
        (),
    ),
    "counts of another communicator move": (
        state_of(
            [communicator(*changed(r0=LATE)), communicator(USUAL, USUAL, name="0x2")],
            [communicator(*changed(r0=LATE)), communicator(AHEAD, USUAL, name="0x2")],
        ),
        ["collectives are still launched by rank 0"],
        (),
    ),
    "one stands still, another moves": (
        state_of(
            [communicator(*changed(r7=LATE)), communicator(USUAL, USUAL, name="b", first_pid=900)],
            [communicator(*changed(r7=LATE)), communicator(AHEAD, USUAL, name="b", first_pid=900)],
        ),
        ["collectives are still launched by pid 900 on 10.0.0.225", BEHIND_7],
        (7,),
    ),
    "equal and still": (state(changed()), [EQUAL], ()),
    "one rank": (state([USUAL]), [], ()),
    "older": (
        state_of_text(
            "NCCL version 2.27.5+cuda12.9 compiled with CUDA 12.9\nx\n\nErrors\n======\n\nDEAD\n"
        ),
        ["NCCL 2.27.5+cuda12.9 reports:", "Errors", "======", "", "DEAD"],
        (),
    ),
    "older, nothing wrong": (
        state_of_text("x\n\nErrors\n======\n\nWarnings\n========\n\n"),
        ["NCCL reports no errors and no warnings"],
        (),
    ),
    "older, cut off": (state_of_text("x\ny"), ["NCCL reports:", "x", "y"], ()),
}


@pytest.mark.parametrize("name", ROWS)
def test_nccl_lines_and_ranks_behind(name: str) -> None:
    found, lines, behind = ROWS[name]

    assert (list(found.lines), found.behind) == (lines, behind)
    assert bool(found.counts) == bool(behind)


@pytest.mark.parametrize(
    ("later", "same"),
    [
        (changed(r7=LATE), True),
        # Others have gone on meanwhile, or it has.
        ([*[AHEAD] * 7, LATE], False),
        (changed(r6=LATE), False),
        (changed(), False),
    ],
)
def test_digest_of_counts(later: list[Rank], same: bool) -> None:
    assert (state(changed(r7=LATE)).counts == state(later).counts) == same


def test_digest_has_progress_of_other_communicators() -> None:
    """A rank evaluates, and its group waits for it; another group trains on."""
    waits = communicator(*changed(r7=LATE))
    trains = [
        communicator(*[Rank({"AllReduce": count})] * 2, name="b", first_pid=900)
        for count in range(3)
    ]
    states = [state_of([waits, before], [waits, now]) for before, now in pairwise(trains)]

    assert [each.behind for each in states] == [(7,)] * 2
    assert states[0].counts != states[1].counts


def test_digest_ignores_order_of_report() -> None:
    """Another process may answer the next query."""
    uneven = [communicator(*changed(r7=LATE), name=f"0x{n}") for n in range(2)]

    assert state_of(uneven).counts == state_of(uneven[::-1]).counts != ""


SUBGROUP = communicator(USUAL, LATE, name="0x2", first_pid=103)
WHOLE = communicator(*changed())
ELSEWHERE = communicator(USUAL, USUAL, name="0x3", first_pid=103, net=1)
TWINS = communicator(*changed(), name="0x3", step=0)


@pytest.mark.parametrize(
    ("communicators", "changes", "words", "behind"),
    [
        ([SUBGROUP, WHOLE], {}, "rank 4", (4,)),
        ([SUBGROUP, WHOLE], {"first": 20}, "rank 24", (24,)),
        # No communicator of all ranks: this node's workers are known by their process ids.
        ([SUBGROUP], {"pids": {104: 9}}, "rank 9", (9,)),
        ([SUBGROUP], {"pids": {103: 3}}, "pid 104 on 10.0.0.26", ()),
        ([SUBGROUP], {"pids": {103: 3, 104: 4}}, "pid 104 on 10.0.0.26", ()),
        ([SUBGROUP], {}, "pid 104 on 10.0.0.26", ()),
        ([SUBGROUP, ELSEWHERE], {"pids": {104: 4}}, "pid 104", ()),
        # Two orders of all ranks; equal process ids in two containers.
        ([SUBGROUP, WHOLE, communicator(*changed(), name="0x3", first_pid=101)], {}, "pid 104", ()),
        ([SUBGROUP, TWINS], {"pids": {104: 4}}, "pid 104", ()),
    ],
)
def test_names_of_nccl_processes(
    communicators: list[RasCommunicator],
    changes: Mapping[str, object],
    words: str,
    behind: tuple[int, ...],
) -> None:
    found = state_of(communicators, world=msgspec.structs.replace(WORLD, **changes))

    assert f"behind: {words}" in found.lines[0]
    assert found.behind == behind


def test_nccl_lines_are_limited() -> None:
    """The last line counts the omitted lines. A long line is cut."""
    every_second = [USUAL, LATE] * 400
    many = state_of([communicator(*every_second, name=f"0x{n}") for n in range(30)])
    text = state_of_text("Errors\n" + "x" * 5000 + "\nline" * 100)
    late = state([AHEAD, *[USUAL] * 1100], world=msgspec.structs.replace(WORLD, size=1101))
    uneven = state([Rank({"AllReduce": n}) for n in range(400)])

    assert (len(many.lines), many.lines[-1]) == (MAX_LINES, f"... {31 - MAX_LINES} more")
    assert len(many.lines[0]) < 600
    assert late.behind == tuple(range(1, 1025))
    assert (len(text.lines), text.lines[-1]) == (MAX_LINES_OF_TEXT, "... 64 more")
    assert max(map(len, (*text.lines, *uneven.lines))) == 1000


def test_nccl_state_of_4096_ranks() -> None:
    """One communicator of all ranks, 512 of 8 and 8 of 512; one rank of each is behind."""
    whole = communicator(*[USUAL] * 4095, LATE)
    small = [
        communicator(*[USUAL] * 7, LATE, name=f"a{n}", first_pid=100 + 8 * n) for n in range(512)
    ]
    large = [
        communicator(*[USUAL] * 511, LATE, name=f"b{n}", first_pid=100 + n, step=8)
        for n in range(8)
    ]
    began = time.process_time()

    found = state_of([whole, *small, *large], world=msgspec.structs.replace(WORLD, size=4096))

    assert time.process_time() - began < 1.3
    assert len(found.behind) == 519
    assert len(msgspec.msgpack.encode(found)) < 8192
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=NcclState) == found
