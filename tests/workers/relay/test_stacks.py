"""Stacks and idle workers, as a relay reports them."""

import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.policy import events
from clusterrun.policy.stacks import StackGroup
from clusterrun.workers.fork_server import messages
from clusterrun.workers.relay.routes import Destination, LauncherOutput, WorkerOutput
from clusterrun.workers.relay.stacks import NOT_HANDLED, NOTHING_PRINTED
from msgspec import to_builtins

from tests.waiting import wait_until
from tests.workers.relay.relay_bench import RelayBench, TimedRelay, read_until, relay_on

FRAME = '  File "t.py", line 1 in f'


def dump(process: int) -> bytes:
    """Return what faulthandler prints, with addresses that differ by process."""
    return f"Current thread 0x{process:016x} (most recent call first):\n{FRAME}\n".encode()


@pytest.fixture
def printed() -> Iterator[tuple[int, int]]:
    """Return a pipe that is the launcher's standard error, the read end first."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


@pytest.fixture
def bench(printed: tuple[int, int]) -> Iterator[RelayBench]:
    """Return a relay for several workers that prints there."""
    with relay_on(printed[1], printed[1]) as bench:
        yield bench


def test_equal_stacks_are_grouped(bench: RelayBench, printed: tuple[int, int]) -> None:
    """They are not shown; other output is."""
    first, second, third = bench.open(0), bench.open(1), bench.open(2)
    bench.relay.send(messages.CaptureStacks(7, 2.0))
    os.write(third.stderr, dump(3).replace(b" in f", b" in g") + b"loss 0.5\n")
    os.write(first.stderr, dump(1))
    os.write(second.stderr, dump(2))

    assert bench.event() == answer(
        7, StackGroup((0, 1), FRAME), StackGroup((2,), '  File "t.py", line 1 in g')
    )
    os.write(first.stderr, b"on\n")
    assert read_until(printed[0], b"on\n") == b"[rank 2] loss 0.5\n[rank 0] on\n"


def test_later_stack_is_output(bench: RelayBench, printed: tuple[int, int]) -> None:
    """The program prints it by itself once the request is answered."""
    printer = bench.open(0)
    bench.relay.send(messages.CaptureStacks(7, 2.0))
    os.write(printer.stderr, dump(1))
    assert bench.event() == answer(7, StackGroup((0,), FRAME))

    os.write(printer.stderr, dump(1))

    assert read_until(printed[0], b"in f\n").endswith(f"[rank 0] {FRAME}\n".encode())


def test_ranks_without_a_stack_have_a_reason(bench: RelayBench) -> None:
    """One has no handler, one does not answer, and one ends meanwhile."""
    printers = [bench.open(rank) for rank in range(3)]
    bench.relay.send(messages.CaptureStacks(1, 2.0))
    bench.relay.send(messages.SkipStacks([0]))
    os.write(printers[2].stderr, dump(2))
    bench.finish(2)

    assert bench.event() == answer(
        1,
        StackGroup((2,), FRAME),
        StackGroup((0,), NOT_HANDLED, found=False),
        StackGroup((1,), NOTHING_PRINTED.format(2.0), found=False),
    )


def test_stacks_without_workers_come_at_once(bench: RelayBench) -> None:
    bench.relay.send(messages.CaptureStacks(1, 2.0))

    assert bench.event(1.0) == answer(1)


@pytest.fixture
def watched(printed: tuple[int, int]) -> Iterator[TimedRelay]:
    """Return a relay that reports idle workers after 10 s."""
    with closing(TimedRelay(LauncherOutput(printed[1], printed[1]))) as watched:
        watched.relay.perform(messages.WatchOutput(10.0))
        yield watched


IDLE = messages.Quiet(10.0)
ENDED = messages.OutputDrained(0, "", None)


DRAIN = messages.DrainOutput(0)


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [(109.9, None, []), (110.0, None, [IDLE]), (200.0, None, [])], id="reported once"
        ),
        pytest.param(
            [(105.0, DRAIN, [ENDED]), (114.9, None, []), (115.0, None, [IDLE])],
            id="the end of a worker resets the time",
        ),
        pytest.param(
            [
                (110.0, None, [IDLE]),
                (120.0, DRAIN, [ENDED, messages.Quiet(None)]),
                (121.0, DRAIN, [ENDED]),
                (130.9, None, []),
                (131.0, None, [IDLE]),
            ],
            id="later activity is reported once",
        ),
        pytest.param(
            [(100.0, messages.WatchOutput(None), []), (1000.0, None, [])], id="not watched"
        ),
    ],
)
def test_idle_workers(
    watched: TimedRelay,
    steps: "list[tuple[float, messages.ToRelay | None, list[messages.FromRelay]]]",
) -> None:
    """At each time, the agent's message, and the relay's reports."""
    for now, message, reports in steps:
        watched.now = now
        if message is not None:
            watched.relay.perform(message)
        assert watched.reports_at(now) == reports


def test_last_line_printed_just_before_the_end_is_known(watched: TimedRelay) -> None:
    """It is read only because the worker has ended."""
    to, (reader, writer) = Destination(None), os.pipe()
    output = WorkerOutput(LocalRank(0), "rank 0", "", to, to, None)
    watched.relay.perform(messages.Open(to_builtins(output, enc_hook=str), ["stdout"]), [reader])
    os.write(writer, b"the end\n")
    os.close(writer)
    watched.relay.perform(messages.DrainOutput(0))
    watched.relay.perform(messages.QueryLastLines(7))

    reported = watched.reports_at(103.0)

    assert reported == [ENDED, messages.LastLines(7, [(0, ("the end", 0.0, 1))])]


def test_requested_stacks_do_not_count_as_output(watched: TimedRelay) -> None:
    to, (reader, writer) = Destination(None), os.pipe()
    output = WorkerOutput(LocalRank(0), "rank 0", "", to, to, None)
    watched.relay.perform(messages.Open(to_builtins(output, enc_hook=str), ["stderr"]), [reader])
    watched.relay.perform(messages.CaptureStacks(6, 0.8))
    os.write(writer, dump(1))
    os.close(writer)
    watched.relay.perform(messages.DrainOutput(0))
    watched.relay.perform(messages.QueryLastLines(7))

    assert messages.LastLines(7, []) in watched.reports_at(103.0)


def test_concurrent_requests_get_the_same_stacks(bench: RelayBench) -> None:
    """A command waits less long for a stopped rank, unless node 0 asks for longer."""
    printer = bench.open(0)
    for number, seconds in ((7, 2.0), (8, 0.8), (9, 2.0)):
        bench.relay.send(messages.CaptureStacks(number, seconds))
    os.write(printer.stderr, dump(1))
    all_three = next_events(bench, 3)
    bench.relay.send(messages.CaptureStacks(10, 0.8))
    silent = bench.event()

    assert all_three == [answer(number, StackGroup((0,), FRAME)) for number in (7, 8, 9)]
    assert silent == answer(10, StackGroup((0,), NOTHING_PRINTED.format(0.8), found=False))


def test_longer_request_extends_the_shorter_one(bench: RelayBench) -> None:
    """SIGQUIT comes while a command waits: both are answered after 2 s."""
    bench.open(0)
    bench.relay.send(messages.CaptureStacks(8, 0.8))
    bench.relay.send(messages.CaptureStacks(7, 2.0))

    silent = StackGroup((0,), NOTHING_PRINTED.format(2.0), found=False)
    assert next_events(bench, 2) == [answer(8, silent), answer(7, silent)]


def test_last_lines_of_all_workers(bench: RelayBench) -> None:
    """Also of an ended worker, and without colours."""
    first, second = bench.open(0), bench.open(1)
    os.write(first.stdout, b"one\ntwo\nbegun")
    os.write(second.stderr, b"\x1b[31mred\x1b[0m\n")
    wait_for_output(bench, {0, 1})
    bench.relay.send(messages.DrainOutput(1))
    bench.event()
    bench.relay.send(messages.QueryLastLines(1))
    lines = bench.event()

    assert isinstance(lines, events.RelayAnswered)
    assert isinstance(lines.seen, dict)
    assert {rank: line.text for rank, line in lines.seen.items()} == {
        0: "begun",
        1: "red",
    }
    assert [line.lines for line in lines.seen.values()] == [2, 1]


def answer(number: int, *groups: StackGroup) -> events.RelayAnswered:
    """Return the relay's answer to a query."""
    return events.RelayAnswered(number, events.WorkerStacks(groups, on_screen=False), at=1.0)


def next_events(bench: RelayBench, count: int) -> list[events.Event]:
    """Return the next events, which may arrive together."""
    happened: list[events.Event] = []

    def are_here() -> bool:
        happened.extend(bench.relay.events(1.0))
        return len(happened) == count

    wait_until(are_here, "events")
    return happened


def wait_for_output(bench: RelayBench, wanted: set[int]) -> None:
    """Ask until the relay has read something of each worker."""

    def has_read() -> bool:
        bench.relay.send(messages.QueryLastLines(0))
        seen = bench.event()
        assert isinstance(seen, events.RelayAnswered)
        assert isinstance(seen.seen, dict)
        return set(seen.seen) == wanted

    wait_until(has_read, "output")
