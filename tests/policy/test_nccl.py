"""What two reports of NCCL say of the ranks."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pytest

from tests.policy.door import (
    MOST_BYTES,
    MOST_COMMUNICATORS,
    MOST_LINES,
    NcclRanks,
    NcclSilence,
    NcclState,
    RasCommunicator,
    RasMissingRank,
    RasMissingStatus,
    RasRank,
    RasReport,
    RasStatus,
    behind,
    compared,
    encoded,
    findings,
    report_of_older,
    still_behind,
)

Pids = Mapping[int, Mapping[int, int]]

PIDS: Pids = {0: {100: 0, 101: 1, 102: 2, 103: 3}, 1: {104: 4, 105: 5, 106: 6, 107: 7}}
"""Of two nodes with four ranks each."""

NAME = "communicator 0xae94 of 8 ranks"

EQUAL = (
    "all ranks have launched the same collectives:"
    " a network, a GPU, send/recv or a CUDA graph keeps them waiting"
)


class Rank(NamedTuple):
    """How a rank is; all is well and equal if nothing else is given."""

    launched: Mapping[str, int] = {"AllReduce": 1204, "Broadcast": 1, "Reduce": 0}
    init: int = 0
    error: int = 0
    missing: str = ""
    """"silent", "dead", "left"."""
    is_lost: bool = False
    """NCCL does not know its process."""


USUAL = Rank()
LATE = Rank({"AllReduce": 1203, "Broadcast": 1})
AHEAD = Rank({"AllReduce": 1205, "Broadcast": 1})
OTHER = Rank({"AllReduce": 1203, "Broadcast": 1, "AllGather": 1})
NEW = Rank({}, init=7)
SILENT, DEAD, LEFT = (Rank(missing=why) for why in ("silent", "dead", "left"))


def communicator(
    *ranks: Rank, name: str = "0xae94", first_pid: int = 100, per_host: int = 4, step: int = 1
) -> RasCommunicator:
    """Return a communicator whose processes have ascending pids, ``per_host`` on each host."""
    here, gone = [], []
    for number, rank in enumerate(ranks):
        place = step * number
        host, pid = (
            f"10.0.{place // per_host // 256}.{1 + place // per_host % 256}",
            first_pid + place,
        )
        if rank.is_lost:
            host, pid = "unknown", -1
        if rank.missing:
            missing = RasMissingStatus(rank.missing != "left", rank.missing == "dead")
            gone.append(RasMissingRank(number, host, pid, missing))
        else:
            state = RasStatus(rank.init, rank.error)
            here.append(RasRank(number, host, pid, state, dict(rank.launched)))
    return RasCommunicator(name, len(ranks), tuple(here), tuple(gone))


def changed(**changes: Rank) -> list[Rank]:
    """Return eight ranks; ``changes``: those of "r7" and the like."""
    return [changes.get(f"r{number}", USUAL) for number in range(8)]


def state(first: Sequence[Rank], second: Sequence[Rank] | None = None) -> NcclState:
    """Return the state of one communicator, as it is after its way through the network."""
    later = first if second is None else second
    return state_of([communicator(*first)], [communicator(*later)])


def state_of(
    first: Sequence[RasCommunicator], second: Sequence[RasCommunicator] | None = None
) -> NcclState:
    reports = [RasReport("2.30.7", tuple(each)) for each in (first, second or first)]
    made = NcclState(compared(*reports), is_mapped=True)
    decoded = msgspec.msgpack.decode(encoded(made), type=NcclState)
    assert decoded == made
    return decoded


ROWS: dict[str, tuple[NcclState, list[str]]] = {
    "one is behind": (
        state(changed(r7=LATE)),
        [
            (
                "ranks 0-6 launched AllReduce 1204 times, rank 7 1203: rank 7 has not launched it"
                f" ({NAME})"
            )
        ],
    ),
    "two are behind, in different collectives": (
        state(changed(r0=LATE, r5=LATE, r3=Rank({"AllReduce": 1204}))),
        [
            (
                "ranks 1-2, 4, 6-7 launched AllReduce 1204 times, ranks 0, 5 1203:"
                f" ranks 0, 5 have not launched it ({NAME})"
            ),
            (
                "ranks 1-2, 4, 6-7 launched Broadcast 1 time, rank 3 0:"
                f" rank 3 has not launched it ({NAME})"
            ),
        ],
    ),
    "one is ahead": (
        state(changed(r2=AHEAD)),
        [
            (
                "rank 2 launched AllReduce 1205 times, ranks 0-1, 3-7 1204:"
                f" ranks 0-1, 3-7 have not launched it ({NAME})"
            )
        ],
    ),
    "different collectives": (
        state(changed(r7=OTHER)),
        [
            (
                "the ranks launched different collectives:"
                " ranks 0-6: AllReduce 1204, Broadcast 1;"
                f" rank 7: AllGather 1, AllReduce 1203, Broadcast 1 ({NAME})"
            )
        ],
    ),
    "many different collectives": (
        state([Rank({f"F{n}": 1}) for n in range(5)]),
        [
            (
                "the ranks launched different collectives: rank 0: F0 1; rank 1: F1 1; rank 2: F2 1;"
                " rank 3: F3 1; ... (communicator 0xae94 of 5 ranks)"
            )
        ],
    ),
    "nothing and different ones": (
        state([Rank({}), Rank({"A": 1}), Rank({"B": 1})]),
        [
            (
                "the ranks launched different collectives: rank 0: nothing; rank 1: A 1; rank 2: B 1"
                " (communicator 0xae94 of 3 ranks)"
            )
        ],
    ),
    "silent and dead": (
        state(changed(r5=SILENT, r6=SILENT, r1=DEAD)),
        ["rank 1 is dead for NCCL", "ranks 5-6 do not answer NCCL"],
    ),
    "silent only in the second report": (state(changed(), changed(r5=SILENT)), [EQUAL]),
    "left": (
        state(changed(r5=LEFT)),
        [f"rank 5 has not joined the {NAME}, or has destroyed it"],
    ),
    "lost": (
        state(changed(r5=Rank(missing="silent", is_lost=True))),
        ["a process that NCCL has lost does not answer NCCL"],
    ),
    "initialising": (
        state([*[NEW] * 7, Rank(missing="silent")]),
        ["rank 7 does not answer NCCL", f"ranks 0-6 still initialise the {NAME}"],
    ),
    "one initialises": (
        state(changed(r3=NEW)),
        [f"rank 3 still initialises the {NAME}"],
    ),
    "initialised meanwhile": (state([NEW] * 8, [Rank({})] * 8), [EQUAL]),
    "not initialised": (
        state(changed(r3=Rank(init=2))),
        [f"rank 3 failed to initialise the {NAME}: NCCL error 2 (ncclSystemError)"],
    ),
    "errors": (
        state(changed(r3=Rank(error=6), r4=Rank(error=6), r5=Rank(error=7), r6=Rank(error=9))),
        ["ranks 3-4 have NCCL error 6 (ncclRemoteError)", "rank 6 has NCCL error 9"],
    ),
    "moves": (
        state_of(
            [communicator(*[USUAL] * 8), communicator(USUAL, LATE, name="0x2")],
            [communicator(*changed(r7=AHEAD)), communicator(USUAL, LATE, name="0x3")],
        ),
        ["NCCL: 1 of 1 communicator moves"],
    ),
    "two of three move": (
        state_of(
            [communicator(*[USUAL] * 8, name=each) for each in "abc"],
            [
                communicator(*[each] * 8, name=name)
                for each, name in ((AHEAD, "a"), (AHEAD, "b"), (USUAL, "c"))
            ],
        ),
        ["NCCL: 2 of 3 communicators move"],
    ),
    "moves, and one is dead": (
        state(changed(r1=DEAD), [AHEAD, DEAD, *[AHEAD] * 6]),
        ["rank 1 is dead for NCCL"],
    ),
    "equal": (state(changed()), [EQUAL]),
    "one rank": (state([USUAL]), []),
    "no communicator": (NcclState(NcclRanks()), []),
    "no answer": (NcclState(NcclSilence("x does not answer")), []),
    "no answer, with libnccl": (
        NcclState(NcclSilence("x does not answer"), is_mapped=True),
        ["NCCL does not report what the ranks have launched: x does not answer"],
    ),
    "older": (
        NcclState(
            report_of_older(
                "NCCL version 2.27.5+cuda12.9 compiled with CUDA 12.9\nx\n\nErrors\n======\n\nDEAD\n"
                "  1 process is considered dead\n"
            )
        ),
        [
            "NCCL 2.27.5+cuda12.9 reports:",
            "Errors",
            "======",
            "",
            "DEAD",
            "  1 process is considered dead",
        ],
    ),
    "older, nothing wrong": (
        NcclState(report_of_older("x\n\nErrors\n======\n\nWarnings\n========\n\n")),
        ["NCCL reports no errors and no warnings"],
    ),
    "older, cut off": (NcclState(report_of_older("x\ny")), ["NCCL reports:", "x", "y"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_lines(name: str) -> None:
    found, expected = ROWS[name]

    assert list(findings(found, PIDS)) == expected


BEHIND: dict[str, tuple[NcclState, tuple[int, ...]]] = {
    "one": (state(changed(r7=LATE)), (7,)),
    "two": (state(changed(r7=LATE, r2=OTHER)), (2, 7)),
    "all but one": (state(changed(r2=AHEAD)), (0, 1, 3, 4, 5, 6, 7)),
    "different collectives": (state(changed(r7=OTHER)), (7,)),
    "half and half": (state([USUAL] * 4 + [OTHER] * 4), tuple(range(8))),
    "moving": (state([USUAL] * 8, changed(r7=AHEAD)), ()),
    "equal": (state(changed()), ()),
    "initialising": (state(changed(r7=NEW)), ()),
    "missing": (state(changed(r7=SILENT)), ()),
    "no answer": (NcclState(NcclSilence("x")), ()),
}


@pytest.mark.parametrize("name", BEHIND)
def test_ranks_behind(name: str) -> None:
    found, expected = BEHIND[name]

    assert behind(found, PIDS) == expected
    assert still_behind(found, found, PIDS) == expected


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        (changed(r7=LATE), (7,)),
        # Others have gone on meanwhile, or it has.
        ([*[AHEAD] * 7, LATE], ()),
        (changed(r6=LATE), ()),
        (changed(), ()),
        # Its neighbour has fallen silent.
        (changed(r7=LATE, r3=SILENT), (7,)),
    ],
)
def test_ranks_still_behind(later: list[Rank], expected: tuple[int, ...]) -> None:
    assert still_behind(state(changed(r7=LATE)), state(later), PIDS) == expected


LATE_7 = state(changed(r7=LATE))
SAME_PIDS: Pids = {node: {100 + n: 4 * node + n for n in range(4)} for node in range(2)}


def in_containers() -> NcclState:
    """Return a state of two hosts that have equal pids."""
    ranks = [*communicator(*[USUAL] * 4).ranks]
    others = [*communicator(USUAL, USUAL, USUAL, LATE, per_host=1000).ranks]
    ranks += [msgspec.structs.replace(each, rank=each.rank + 4, host="10.9.9.9") for each in others]
    both = RasCommunicator("0xae94", 8, tuple(ranks), ())
    return state_of([both])


@pytest.mark.parametrize(
    ("found", "pids", "late", "ranks"),
    [
        (LATE_7, PIDS, "rank 7", (7,)),
        # An agent for each of a scheduler's tasks.
        (LATE_7, {n: {100 + n: n} for n in range(8)}, "rank 7", (7,)),
        (in_containers(), SAME_PIDS, "rank 7", (7,)),
        # The ranks run in containers with other pids, or are children of a script.
        (LATE_7, {0: {1: 0}, 1: {2: 4}}, "pid 107 on 10.0.0.2", ()),
        (LATE_7, {}, "pid 107 on 10.0.0.2", ()),
        # Some of them.
        (LATE_7, {0: PIDS[0], 1: {104: 4, 105: 5}}, "pid 107 on 10.0.0.2", ()),
        # Equal pids, and no communicator of all ranks.
        (
            LATE_7,
            {n: {100 + pid: 8 * n - pid for pid in range(8)} for n in (1, 2)},
            "pid 107 on 10.0.0.2",
            (),
        ),
        # A host of two agents, one of whose ranks has no communicator.
        (LATE_7, {0: {104: 4, 105: 5}, 1: {106: 6, 107: 7, 999: 8}}, "pid 107 on 10.0.0.2", ()),
    ],
)
def test_processes_are_named_by_their_ranks(
    found: NcclState, pids: Pids, late: str, ranks: tuple[int, ...]
) -> None:
    (line,) = findings(found, pids)

    assert f", {late} 1203: {late} has not launched it" in line
    assert behind(found, pids) == ranks


def test_a_few_unknown_processes_are_named() -> None:
    """The others are counted."""
    (line,) = findings(LATE_7, {1: PIDS[1]})
    (other,) = findings(state(changed(r1=LATE)), {0: PIDS[0]})
    (third,) = findings(state([*changed(), LATE, *[USUAL] * 3]), {2: {100: 0}})

    assert line.startswith(
        "ranks 4-6, pid 100 on 10.0.0.1, pid 101 on 10.0.0.1, pid 102 on 10.0.0.1,"
        " pid 103 on 10.0.0.1 launched"
    )
    assert "ranks 0, 2-3, pid 104 on 10.0.0.2" in other
    assert ", 7 more processes launched" in third


def test_lines_are_counted() -> None:
    """At most 20 are shown, and communicators of which nothing travels are counted."""
    many = [communicator(*changed(r7=LATE), name=f"0x{n}") for n in range(MOST_COMMUNICATORS + 5)]
    lines = findings(state_of(many), PIDS)
    shown = state_of(many).answer

    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == f"... {MOST_COMMUNICATORS + 1 - MOST_LINES} more"
    assert isinstance(shown, NcclRanks)
    assert (len(shown.communicators), shown.left_out) == (MOST_COMMUNICATORS, 5)


def test_communicators_left_out_are_counted() -> None:
    left_out = NcclState(NcclRanks(total=9, left_out=5))

    assert findings(left_out, PIDS) == ("NCCL: the ranks of 5 more communicators differ, too",)


def test_a_large_job_fits_into_a_message() -> None:
    """4,096 ranks: a communicator of all, 512 on a host each, and 8 across all hosts; each differs."""
    whole = communicator(*[USUAL] * 4095, LATE, per_host=8)
    on_hosts = [
        communicator(*[USUAL] * 7, LATE, name=f"0xa{n}", first_pid=100 + 8 * n) for n in range(512)
    ]
    across = [
        communicator(*[USUAL] * 511, LATE, name=f"0xb{n}", first_pid=100 + n, step=8, per_host=8)
        for n in range(8)
    ]
    every = state_of([whole, *across, *on_hosts])

    assert len(encoded(state_of([whole, *across]))) < MOST_BYTES // 4
    assert len(encoded(every)) < MOST_BYTES // 2


def test_no_two_counts_are_equal() -> None:
    """The first communicators travel, or their number alone."""
    whole = [Rank({"AllReduce": n}) for n in range(4096)]
    several = [communicator(*whole, name=f"0x{n}") for n in range(8)]
    made = NcclState(compared(*[RasReport("2.30.7", tuple(several))] * 2))

    fewer = msgspec.msgpack.decode(encoded(made), type=NcclState).answer
    none = msgspec.msgpack.decode(encoded(made, 256), type=NcclState).answer

    assert len(encoded(made)) <= MOST_BYTES
    assert isinstance(fewer, NcclRanks)
    assert 0 < len(fewer.communicators) < 8
    assert len(fewer.communicators) + fewer.left_out == 8
    assert none == NcclRanks(total=8, left_out=8)


def test_a_process_beyond_the_table_is_ignored() -> None:
    """Another node may send anything within the bounds."""
    body = msgspec.to_builtins(LATE_7)
    body["answer"]["communicators"][0]["groups"][1]["processes"] = [[7, 1, 1 << 30]]

    assert behind(msgspec.convert(body, NcclState), PIDS) == (7,)


def test_only_the_first_lines_of_an_older_report() -> None:
    report = report_of_older("NCCL version 2.24.3\n\nErrors\n" + "x" * 500 + "\nline" * 100)

    lines = report.text.split("\n")
    assert (len(lines), len(lines[1])) == (40, 400)
