"""Stacks and idle workers, as a relay reports them from what workers print."""

import os
from collections.abc import Iterator

import pytest

from tests.relay_bench import RelayBench, read_until, relay_on
from tests.waiting import wait_until
from tests.workers.door import (
    NOT_HANDLED,
    NOTHING_PRINTED,
    NOTHING_YET,
    ActivityWatch,
    Event,
    LastLines,
    LocalRank,
    Message,
    ReadOutput,
    ReadPiece,
    RelaySaw,
    StackGroup,
    WorkersActive,
    WorkersIdle,
    WorkerStacks,
)

FRAME = '  File "t.py", line 1 in f'


def dump(process: int) -> bytes:
    """Return what faulthandler prints, with addresses that differ by process."""
    return f"Current thread 0x{process:016x} (most recent call first):\n{FRAME}\n".encode()


@pytest.fixture
def printed() -> Iterator[tuple[int, int]]:
    """Return a pipe, reader first: what stands for the launcher's standard error."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def bench(printed: tuple[int, int]) -> Iterator[RelayBench]:
    """Return a relay for several workers that prints there."""
    with relay_on(printed[1], printed[1]) as bench:
        yield bench


def test_equal_stacks_are_one(bench: RelayBench, printed: tuple[int, int]) -> None:
    """They are not shown; what else is printed meanwhile is."""
    first, second, third = bench.open(0), bench.open(1), bench.open(2)
    bench.relay.look_at_stacks(7, patient=True)
    os.write(third.stderr, dump(3).replace(b" in f", b" in g") + b"loss 0.5\n")
    os.write(first.stderr, dump(1))
    os.write(second.stderr, dump(2))

    assert bench.event() == saw(
        7, StackGroup((0, 1), FRAME), StackGroup((2,), '  File "t.py", line 1 in g')
    )
    os.write(first.stderr, b"on\n")
    assert read_until(printed[0], b"on\n") == b"[rank 2] loss 0.5\n[rank 0] on\n"


def test_those_without_a_stack(bench: RelayBench) -> None:
    """One has no handler, one does not answer, and one ends meanwhile."""
    printers = [bench.open(rank) for rank in range(3)]
    bench.relay.look_at_stacks(1, patient=True)
    bench.relay.lack_stacks([LocalRank(0)])
    os.write(printers[2].stderr, dump(2))
    bench.finish(2)

    assert bench.event() == saw(
        1,
        StackGroup((2,), FRAME),
        StackGroup((0,), NOT_HANDLED, found=False),
        StackGroup((1,), NOTHING_PRINTED, found=False),
    )


def test_nobody_is_there(bench: RelayBench) -> None:
    """The answer comes at once."""
    bench.relay.look_at_stacks(1, patient=True)

    assert bench.event(1.0) == saw(1)


def test_a_worker_with_the_output_to_itself(printed: tuple[int, int]) -> None:
    """Its bytes are passed on at once; its stack is reported, too, as already shown."""
    with relay_on(printed[1], printed[1], prefix=False) as bench:
        printer = bench.open(0)
        bench.relay.look_at_stacks(1, patient=True)
        os.write(printer.stderr, dump(1))

        assert bench.event() == saw(1, StackGroup((0,), FRAME), on_screen=True)
        assert read_until(printed[0], b"in f\n") == dump(1)


def test_a_relay_tells_of_stillness_once(bench: RelayBench) -> None:
    """It does so again after a worker has printed; a stack that was asked for does not count."""
    printer = bench.open(0)
    bench.relay.watch(0.3)

    assert bench.event() == WorkersIdle(0.3, 1.0)
    bench.relay.look_at_stacks(1, patient=True)
    os.write(printer.stderr, dump(1))
    assert isinstance(bench.event(), RelaySaw)
    os.write(printer.stdout, b"x")
    assert bench.event() == WorkersActive(1.0)
    assert bench.event() == WorkersIdle(0.3, 1.0)


class TestActivityWatch:
    """The clock is the test's."""

    def setup_method(self) -> None:
        """Watch for 10 s, from 100 s on."""
        self.reported: list[Message] = []
        self.activity = ActivityWatch(self.reported.append)
        self.activity.watch(10.0, 100.0)

    def test_time_passes(self) -> None:
        """Idle workers are reported when it is due, and not again."""
        assert self.activity.due == 110.0
        self.activity.check(109.9)
        assert self.reported == []
        self.activity.check(110.0)
        self.activity.check(200.0)
        assert self.reported == [{"kind": "idle", "seconds": 10.0}]
        assert self.activity.due is None

    def test_something_moves(self) -> None:
        """Nothing is reported; the time begins again."""
        self.activity.note(105.0)
        self.activity.check(114.9)
        assert self.reported == []
        assert self.activity.due == 115.0

    def test_something_moves_again(self) -> None:
        self.activity.check(110.0)
        self.activity.note(120.0)
        self.activity.note(121.0)
        assert self.reported[1:] == [{"kind": "active"}]
        assert self.activity.due == 131.0

    def test_nobody_watches(self) -> None:
        self.activity.watch(0.0, 101.0)
        assert self.activity.due is None
        self.activity.check(1000.0)
        assert self.reported == []


def test_all_that_ask_meanwhile_get_the_same_stacks(bench: RelayBench) -> None:
    """A command waits less long for a rank that is stopped, unless one that is patient has asked."""
    printer = bench.open(0)
    for number, patient in ((7, True), (8, False), (9, True)):
        bench.relay.look_at_stacks(number, patient=patient)
    os.write(printer.stderr, dump(1))
    all_three = events_of(bench, 3)
    bench.relay.look_at_stacks(10, patient=False)
    silent = bench.event()

    assert all_three == [saw(number, StackGroup((0,), FRAME)) for number in (7, 8, 9)]
    assert silent == saw(10, StackGroup((0,), NOTHING_YET, found=False))


def test_who_is_patient_gets_longer_than_the_command_before(bench: RelayBench) -> None:
    """SIGQUIT comes while a user looks: both are answered, with what there is after 2 s."""
    bench.open(0)
    bench.relay.look_at_stacks(8, patient=False)
    bench.relay.look_at_stacks(7, patient=True)

    silent = StackGroup((0,), NOTHING_PRINTED, found=False)
    assert events_of(bench, 2) == [saw(8, silent), saw(7, silent)]


def test_last_lines_and_output_are_kept_of_all_workers(bench: RelayBench) -> None:
    """Also of one that has ended; positions are those of the bytes printed."""
    first, second = bench.open(0), bench.open(1)
    os.write(first.stdout, b"one\ntwo\nbegun")
    os.write(second.stderr, b"\x1b[31mred\x1b[0m\n")
    wait_for_output(bench, {0, 1})
    bench.relay.finish(LocalRank(1))
    bench.event()
    bench.relay.look_at_lines(1)
    lines = bench.event()
    bench.relay.look_at_output(2, {LocalRank(0): 4, LocalRank(1): 0, LocalRank(9): 0}, "", 100)

    assert isinstance(lines, RelaySaw)
    assert isinstance(lines.seen, LastLines)
    assert {rank: line.text for rank, line in lines.seen.by_local_rank.items()} == {
        0: "begun",
        1: "red",
    }
    assert [line.lines for line in lines.seen.by_local_rank.values()] == [2, 1]
    assert bench.event() == RelaySaw(
        2,
        ReadOutput(
            (
                ReadPiece(LocalRank(0), 8, 0, "two\n"),
                ReadPiece(LocalRank(1), 13, 0, "red\n"),
            )
        ),
        at=1.0,
    )


def saw(number: int, *groups: StackGroup, on_screen: bool = False) -> RelaySaw:
    """Return the relay's answer to a look."""
    return RelaySaw(number, WorkerStacks(groups, on_screen), at=1.0)


def events_of(bench: RelayBench, count: int) -> list[Event]:
    """Return the next events, which may arrive together."""
    events: list[Event] = []

    def are_here() -> bool:
        events.extend(bench.relay.events(1.0))
        return len(events) == count

    wait_until(are_here, "events")
    return events


def wait_for_output(bench: RelayBench, wanted: set[int]) -> None:
    """Ask until the relay has read something of each worker."""

    def has_read() -> bool:
        bench.relay.look_at_lines(0)
        seen = bench.event()
        assert isinstance(seen, RelaySaw)
        assert isinstance(seen.seen, LastLines)
        return set(seen.seen.by_local_rank) == wanted

    wait_until(has_read, "output")
