"""The loop: descriptors, timers, the order in which they are served, and the order of events."""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import pytest
from clusterrun.loop import NEVER, Loop, Priority

Serve = Callable[[float], Iterable[str]]


class Pipe:
    """A descriptor that a test makes ready."""

    def __init__(self, stack: ExitStack) -> None:
        self.reads, self.writes = os.pipe2(os.O_NONBLOCK)
        stack.callback(os.close, self.reads)
        stack.callback(os.close, self.writes)

    def write(self, text: str) -> Serve:
        """Make it ready; return what reads it and then has this event."""
        os.write(self.writes, b"x")

        def serve(_now: float) -> Iterable[str]:
            os.read(self.reads, 10)
            return [text]

        return serve


class Timer:
    """What is due once."""

    def __init__(self, due: float) -> None:
        self.due = due

    def events(self, now: float) -> list[str]:
        assert now >= self.due
        self.due = NEVER
        return ["due"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return what closes everything at the end."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def loop(stack: ExitStack) -> Loop[str]:
    """Return an empty loop on the real clock."""
    made = Loop[str](time.monotonic)
    stack.callback(made.close)
    return made


def test_turn_serves_by_priority(loop: Loop[str], stack: ExitStack) -> None:
    """Signals first, unauthenticated connections last, whatever became ready or was registered first."""
    for rank in reversed(Priority):
        pipe = Pipe(stack)
        loop.watch(pipe.reads, pipe.write(rank.name), rank)

    assert [loop.next_event() for _ in Priority] == [
        "SIGNALS",
        "AUTHENTICATED",
        "LISTENERS",
        "UNAUTHENTICATED",
    ]


def test_signals_are_read_in_each_turn(loop: Loop[str], stack: ExitStack) -> None:
    """Even if their descriptor was not ready when the loop woke up."""
    inbox, other = Pipe(stack), Pipe(stack)
    loop.watch(inbox.reads, lambda _now: ["signal"], Priority.SIGNALS)
    loop.watch(other.reads, other.write("other"))

    assert [loop.next_event(), loop.next_event()] == ["signal", "other"]


def test_unauthenticated_connections_per_turn_are_limited(
    loop: Loop[str], stack: ExitStack
) -> None:
    """The others are served in the turns that follow."""
    for number in range(40):
        pipe = Pipe(stack)
        loop.watch(pipe.reads, pipe.write(f"client {number}"), Priority.UNAUTHENTICATED)
    member = Pipe(stack)

    first = [loop.next_event() for _ in range(16)]
    loop.watch(member.reads, member.write("member"))
    rest = [loop.next_event() for _ in range(25)]

    assert rest[0] == "member"
    assert len({*first, *rest}) == 41


def test_no_connection_is_accepted_while_many_are_unauthenticated(
    loop: Loop[str], stack: ExitStack
) -> None:
    """Open connections come first: a flood of new ones does not slow them down."""
    listener = Pipe(stack)
    loop.watch(listener.reads, listener.write("accepted"), Priority.LISTENERS)
    for number in range(17):
        pipe = Pipe(stack)
        loop.watch(pipe.reads, pipe.write(f"client {number}"), Priority.UNAUTHENTICATED)

    happened = [loop.next_event() for _ in range(18)]

    assert happened.index("accepted") == 16
    assert happened[-1] == "client 16"


def test_unauthenticated_connections_take_turns(loop: Loop[str], stack: ExitStack) -> None:
    """Those that are always ready do not keep others from being served."""
    for number in range(20):
        pipe = Pipe(stack)
        pipe.write("")
        name = f"client {number}"
        loop.watch(pipe.reads, lambda _now, name=name: [name], Priority.UNAUTHENTICATED)  # type: ignore[misc]

    assert len({loop.next_event() for _ in range(5 * 16)}) == 20


def test_timers_run_after_ready_descriptors(loop: Loop[str], stack: ExitStack) -> None:
    """A member that seems silent may have sent something."""
    pipe = Pipe(stack)
    loop.watch(pipe.reads, pipe.write("ready"))
    loop.add_timer(Timer(time.monotonic()))

    assert [loop.next_event(), loop.next_event()] == ["ready", "due"]


def test_loop_wakes_for_a_timer(loop: Loop[str]) -> None:
    """A member sends heartbeats although nothing arrives."""
    timed = Timer(due := time.monotonic() + 0.05)
    loop.add_timer(timed)

    assert loop.next_event() == "due"
    assert time.monotonic() >= due


def test_deadline_can_be_moved(loop: Loop[str]) -> None:
    """The newest one with a key replaces the others, and happens once."""
    now = time.monotonic()
    loop.at("deadline", now, lambda _at: "early")
    loop.at("deadline", now + 0.02, lambda _at: "deadline")
    loop.at("other", now + 0.04, lambda _at: "other")
    loop.at("cancelled", now, lambda _at: "cancelled")
    loop.at("cancelled", NEVER, lambda _at: "cancelled")

    assert [loop.next_event(), loop.next_event()] == ["deadline", "other"]


def test_deadline_comes_after_queued_events(loop: Loop[str]) -> None:
    """Handling those may move it."""
    loop.at("deadline", 0.0, lambda _at: "deadline")
    loop.add(["worker ended"])

    assert loop.next_event() == "worker ended"
    loop.at("deadline", NEVER, lambda _at: "deadline")
    loop.add_timer(Timer(0.0))
    assert loop.next_event() == "due"


def test_events_can_be_queued_first(loop: Loop[str]) -> None:
    """An immediate answer comes before signals that arrived later."""
    loop.add(["signal"])
    loop.add_first(["answer", "and more"])
    loop.keep(lambda event: event != "signal")

    assert [loop.next_event(), loop.next_event()] == ["answer", "and more"]


def test_descriptor_is_watched_for_writing_while_data_is_queued(
    loop: Loop[str], stack: ExitStack
) -> None:
    pipe = Pipe(stack)
    loop.watch(pipe.writes, lambda _now: ["writable"], reads=False)
    loop.at("quiet", time.monotonic() + 0.02, lambda _at: "quiet")
    assert loop.next_event() == "quiet"

    loop.watch(pipe.writes, lambda _now: ["writable"], reads=False, writes=True)
    assert loop.next_event() == "writable"
    loop.forget(pipe.writes)
    loop.forget(pipe.writes)
    loop.keep(lambda _event: False)
    loop.at("quiet", time.monotonic() + 0.02, lambda _at: "quiet")
    assert loop.next_event() == "quiet"


def test_moment_in_a_month_does_not_overflow(loop: Loop[str], stack: ExitStack) -> None:
    """The kernel takes milliseconds as a C int, 24.8 days at most."""
    pipe = Pipe(stack)
    loop.at("end of the job", loop.clock() + 30 * 86400.0, lambda _at: "far")
    loop.watch(pipe.reads, pipe.write("readable"))

    assert loop.next_event() == "readable"
