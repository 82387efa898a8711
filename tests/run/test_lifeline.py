"""What an agent hears of the program that has called it: its signals, its end, its silence."""

import signal
import socket
import time
from collections.abc import Iterator

import msgspec
import pytest

from tests.run.door import (
    Event,
    Interrupted,
    Lifeline,
    Loop,
    SignalReceived,
    Waiting,
    caller,
)
from tests.waiting import SECONDS_TO_ACT

SILENCE = 0.5

BEAT = caller.Beat()


class Called:
    """An agent's loop with nothing in it but the lifeline, and the caller's end of the channel."""

    def __init__(self, silence: float) -> None:
        ours, agent = socket.socketpair()
        self.caller = ours
        number = agent.detach()
        self.channel = caller.CallerChannel(caller.FROM_CALLER, number, number)
        self.loop = Loop[Event](time.monotonic)
        self.leases: list[float | None] = []
        self._lifeline = Lifeline(self.channel, silence)

    def begins(self) -> None:
        self._lifeline.run_in(self.loop, self.leases.append)

    def sends(self, *messages: caller.FromCaller) -> None:
        for message in messages:
            body = msgspec.msgpack.encode(message)
            self.caller.sendall(len(body).to_bytes(4, "big") + body)

    def next(self) -> Event:
        """Return the next event, without its time."""
        self.loop.at("late", time.monotonic() + SECONDS_TO_ACT, lambda _: pytest.fail("no event"))
        return self.loop.next_event()

    def turns(self, seconds: float) -> int:
        """Return how often the loop turns in that time."""
        count, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            self.loop.turn(until)
            count += 1
        return count

    def close(self) -> None:
        self.caller.close()
        self.channel.close()
        self.loop.close()


@pytest.fixture
def remote() -> Iterator[Called]:
    """Return an agent that a client on another machine has called."""
    made = Called(SILENCE)
    yield made
    made.close()


def is_signal(event: Event, number: int) -> bool:
    return isinstance(event, SignalReceived) and event.number == number


def test_a_signal_before_the_job_begins_is_not_lost(remote: Called) -> None:
    """The wait for the start of all hosts has read it, and the descriptor is not ready any more."""
    remote.sends(caller.Signal(signal.SIGINT))
    assert remote.channel.next(caller.Start, 0.1) is None

    remote.begins()

    assert is_signal(remote.next(), signal.SIGINT)


def test_a_signal_is_as_one_by_kill(remote: Called) -> None:
    """Except one that would end this process."""
    remote.begins()
    numbers = (signal.SIGKILL, signal.SIGINT, signal.SIGUSR1)
    remote.sends(*(caller.Signal(number) for number in numbers))

    assert is_signal(remote.next(), signal.SIGINT)
    assert is_signal(remote.next(), signal.SIGUSR1)


def test_the_end_of_a_remote_caller_is_a_sigterm(remote: Called) -> None:
    remote.begins()
    remote.caller.close()

    assert is_signal(remote.next(), signal.SIGTERM)
    assert remote.turns(2 * SILENCE) == 1


def test_the_silence_of_a_remote_caller_is_a_sigterm(remote: Called) -> None:
    remote.begins()
    began = time.monotonic()
    time.sleep(SILENCE / 2)
    remote.sends(BEAT)

    assert is_signal(remote.next(), signal.SIGTERM)
    assert time.monotonic() - began > 1.4 * SILENCE
    # It may be heard again: the job ends all the same.
    remote.sends(BEAT)
    assert remote.turns(2 * SILENCE) == 1


def test_noise_is_the_end_of_a_remote_caller(remote: Called) -> None:
    remote.begins()
    remote.caller.sendall(b"\xff" * 100)

    assert is_signal(remote.next(), signal.SIGTERM)


def test_workers_live_as_long_as_a_remote_caller_is_heard(remote: Called) -> None:
    """The fork server ends them for an agent that is frozen; one that ends in order has its grace."""
    remote.begins()
    assert remote.leases == [2 * SILENCE]
    remote.sends(BEAT)
    remote.turns(SILENCE / 5)
    assert remote.leases == [2 * SILENCE] * 2

    remote.caller.close()
    remote.next()

    assert remote.leases[-1] is None


def test_the_end_of_the_caller_ends_a_node_that_waits_for_others() -> None:
    called, waiting = Called(0.0), Waiting(None)
    called.begins()
    called.caller.close()

    waiting.happens(called.next())

    assert waiting.end == Interrupted(signal.SIGTERM)
    called.close()
