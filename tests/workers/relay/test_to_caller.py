"""A relay whose lines are shown by the launcher's caller: what is printed comes there as messages."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from tests.workers.door import (
    LineStyle,
    ToCaller,
    events,
    screen,
)
from tests.workers.relay.relay_bench import (
    PATIENCE,
    RelayBench,
    TimedRelay,
    fill,
    relay_at,
    socket_pair,
)

ONE_LINE = b"[rank 0] y\n"


class Output(Struct, tag=True, frozen=True):
    """Whole lines of a stream."""

    stream: int
    data: bytes


class Notice(Struct, tag=True, frozen=True):
    """Lines of the launcher's own."""

    text: str


class Beat(Struct, tag=True, frozen=True):
    """A sign of life."""


Message = Output | Notice | Beat
DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def frame(message: Message) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def place_at(descriptor: int, beat_seconds: float = 60.0) -> ToCaller:
    """Return where a relay shows lines that prints to a caller."""
    return ToCaller(
        descriptor,
        output=lambda stream, data: frame(Output(stream, data)),
        notice=lambda text: frame(Notice(text)),
        beat=lambda: frame(Beat()),
        beat_seconds=beat_seconds,
    )


class Caller:
    """The caller's end of a channel, or of a pipe."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.writer = writer
        self._incoming = b""

    def messages(self, count: int = 1) -> list[Message]:
        """Return the next messages."""
        return self.until(lambda received: len(received) >= count)

    def until(self, complete: Callable[[list[Message]], bool]) -> list[Message]:
        """Return the messages up to one with which they are complete."""
        received: list[Message] = []
        deadline = time.monotonic() + PATIENCE
        while not complete(received):
            received += self.received(max(0.0, deadline - time.monotonic()))
            assert time.monotonic() < deadline, received[-3:]
        return received

    def received(self, seconds: float = 0.0) -> list[Message]:
        """Return what has come, or comes within some seconds."""
        while select.select([self.reader], [], [], seconds)[0]:
            data = os.read(self.reader, 1 << 16)
            assert data, "the relay has closed the channel"
            self._incoming += data
            seconds = 0.0
        return list(self._whole())

    def _whole(self) -> Iterator[Message]:
        while len(self._incoming) >= 4:
            end = 4 + int.from_bytes(self._incoming[:4], "big")
            if len(self._incoming) < end:
                return
            body, self._incoming = self._incoming[4:end], self._incoming[end:]
            yield DECODER.decode(body)


@pytest.fixture(params=[os.pipe, socket_pair])
def caller(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Return a caller that reads from a pipe, or from a socket."""
    caller = Caller(*request.param())
    yield caller
    os.close(caller.writer)
    os.close(caller.reader)


@pytest.fixture
def bench(caller: Caller) -> Iterator[RelayBench]:
    """Return a relay for several workers."""
    with relay_at(place_at(caller.writer), LineStyle()) as bench:
        yield bench


def lines_of(messages: list[Message]) -> bytes:
    return b"".join(it.data for it in messages if isinstance(it, Output) and it.stream == 1)


def test_whole_lines_are_messages(bench: RelayBench, caller: Caller) -> None:
    """What a worker has begun waits for its end; each message names its stream."""
    printer = bench.open(0)

    os.write(printer.stdout, b"one\ntw")
    assert caller.messages() == [Output(1, b"[rank 0] one\n")]
    os.write(printer.stderr, b"oops\n\r1%\r2%")
    assert caller.messages() == [Output(2, b"[rank 0] oops\n")]
    os.write(printer.stdout, b"o\n")
    assert caller.messages() == [Output(1, b"[rank 0] two\n")]
    printer.close()
    bench.finish(0)
    assert caller.messages() == [Output(2, b"[rank 0] 2%\n")]


def test_the_launchers_own_lines_are_messages_of_their_own(
    bench: RelayBench, caller: Caller
) -> None:
    """They come before anything is known of workers, too; bytes that are no characters are replaced."""
    bench.relay.notice("the driver is slow")
    bench.relay.say("one\n  two\n")
    bench.relay.say("caf\udce9")

    assert caller.messages(3) == [
        Notice("clusterrun: the driver is slow"),
        Notice("one\n  two"),
        Notice("caf\ufffd"),
    ]


def test_a_single_worker_is_passed_through_line_by_line(caller: Caller) -> None:
    """Its bytes stay as they are; the caller prints other things, too, and gets no half lines."""
    with relay_at(place_at(caller.writer), LineStyle(raw=True)) as bench:
        printer = bench.open(0)
        os.write(printer.stdout, b"name? ")
        bench.relay.say("hello")
        seen = caller.messages()
        os.write(printer.stdout, b"x\n\r1%\r2%\xff\nunfinished")
        seen += caller.messages()
        printer.close()
        bench.finish(0)

    assert seen == [Notice("hello"), Output(1, b"name? x\n\r1%\r2%\xff\n")]
    assert caller.messages() == [Output(1, b"unfinished\n")]


def test_long_lines(bench: RelayBench, caller: Caller) -> None:
    """One that is held back until it is whole comes whole; a longer one in pieces, none of them large."""
    printer = bench.open(0)
    longest = b"x" * (screen.LONGEST_LINE - 1)
    os.write(printer.stdout, longest + b"\n")
    assert caller.messages() == [Output(1, b"[rank 0] " + longest + b"\n")]

    os.set_blocking(printer.stdout, False)
    written = 0
    received: list[Message] = []
    while written < 20 * screen.LONGEST_LINE:
        if select.select([], [printer.stdout], [], 0.01)[1]:
            written += os.write(printer.stdout, b"z" * 4096)
        received += caller.received()
    os.set_blocking(printer.stdout, True)
    os.write(printer.stdout, b"\n")
    received += caller.until(lambda more: lines_of(more).endswith(b"\n"))

    assert lines_of(received) == b"[rank 0] " + b"z" * written + b"\n"
    assert all(len(it.data) <= 2 * screen.LONGEST_LINE for it in received if isinstance(it, Output))


def test_a_slow_caller_stops_the_worker_not_the_relay(bench: RelayBench, caller: Caller) -> None:
    """Printing blocks after some KiB, the agent is answered at once, and nothing is lost or torn."""
    printer = bench.open(0)
    written = fill(printer.stdout)
    ended = bench.finish(7)

    received = caller.until(lambda more: lines_of(more).count(b"y") == written // 2)

    assert isinstance(ended, events.OutputEnded)
    assert lines_of(received) == ONE_LINE * (written // 2)
    assert written < 1 << 20


def test_the_agent_may_go_on_after_a_relay_that_has_drained(
    bench: RelayBench, caller: Caller
) -> None:
    """Its messages follow those of the relay; all of them are whole."""
    printer = bench.open(0)
    written = os.write(printer.stdout, b"y\n" * 2000)
    printer.close()
    bench.finish(0)
    assert not bench.relay.is_drained

    bench.relay.close(5)
    os.write(caller.writer, frame(Notice("the end")))
    received = caller.until(lambda more: more[-1:] == [Notice("the end")])

    assert bench.relay.is_drained
    assert bench.relay.losses == ()
    assert lines_of(received) == ONE_LINE * (written // 2)


def test_the_agent_may_not_go_on_in_the_middle_of_a_frame(bench: RelayBench) -> None:
    """A caller that does not read delays the end for no longer than the given time."""
    printer = bench.open(0)
    fill(printer.stdout)
    started = time.monotonic()

    bench.relay.close(0.3)

    assert not bench.relay.is_drained
    assert bench.relay.how_it_ended == "exited with code 0"
    assert 0.2 < time.monotonic() - started < 5


def test_a_caller_that_is_gone_ends_nothing(tmp_path: Path) -> None:
    """The agent, which reads from it, notices that itself; log files are complete."""
    reader, writer = os.pipe()
    with relay_at(place_at(writer, 0.1), LineStyle()) as bench:
        os.close(writer)
        printer = bench.open(0, logs=tmp_path)
        os.close(reader)
        for _ in range(100):
            os.write(printer.stdout, b"y\n" * 5000)
        printer.close()
        event = bench.finish(0)

    assert isinstance(event, events.OutputEnded)
    assert not bench.relay.output_closed
    assert not bench.relay.is_drained
    assert bench.relay.losses == ()
    assert (tmp_path / "rank-0.out").read_bytes() == b"y\n" * 500_000


class Timed(TimedRelay):
    """A relay with a beat after a second."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(place_at(caller.writer, 1.0))
        self._caller = caller

    def at(self, now: float) -> list[Message]:
        """Return what the caller is sent by this time."""
        self.reports_at(now)
        return self._caller.received()


@pytest.fixture
def timed(caller: Caller) -> Iterator[Timed]:
    with closing(Timed(caller)) as timed:
        yield timed


def test_a_beat_is_sent_after_a_second_without_a_message(timed: Timed) -> None:
    sent = [timed.at(now) for now in (100.0, 100.9, 101.0, 101.5, 101.9)]
    timed.relay.do_say("hello")
    sent += [timed.at(now) for now in (102.8, 102.9)]

    assert sent == [[], [], [Beat()], [], [], [Notice("hello")], [Beat()]]


def test_a_caller_that_is_behind_gets_no_beat(timed: Timed) -> None:
    """It has enough to read, and learns from that; beats go on when it has read all."""
    text = "y" * 1000
    for _ in range(2000):
        timed.relay.do_say(text)
    for now in (101.0, 102.5, 104.0):
        timed.reports_at(now)

    received: list[Message] = []
    while len(received) < 2000:
        received += timed.at(104.5)

    assert received == [Notice(text)] * 2000
    assert [timed.at(now) for now in (104.9, 105.0)] == [[], [Beat()]]
