"""The coordinator performs what the policy decides: for its own agent in memory, for others elsewhere."""

from collections.abc import Iterable

import pytest

from tests.network.nodes import fate, hello, opened_job
from tests.policy.door import (
    OWN,
    CallerConnected,
    Coordinator,
    Failing,
    FirstFailure,
    FromCoordinator,
    HelloReceived,
    MessageReceived,
    NextAttempt,
    Refused,
    Stop,
    TimePassed,
    Verdict,
    WorldFormed,
    done,
)

FAILED = fate(0, 3)


class Noted:
    """The others, of which a test sees what they are asked for."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def send(self, connections: Iterable[int], message: FromCoordinator) -> None:
        self.asked.append((tuple(connections), type(message)))

    def disconnect(self, connections: Iterable[int]) -> None:
        self.asked.append(("disconnect", tuple(connections)))

    def stop_listening(self) -> None:
        self.asked.append("stop listening")


class Told:
    """A coordinator, its mail and what it prints; ports are counted from 40000."""

    def __init__(self, nodes: int, *, others: bool) -> None:
        self.printed: list[str] = []
        self.port = 40000
        job = opened_job(nodes, failing=Failing(max_restarts=1))
        self.coordinator = Coordinator(job, self._next_port, self.printed.append)
        self.others = Noted()
        if others:
            self.coordinator.others = self.others

    def _next_port(self) -> int:
        self.port += 1
        return self.port

    def is_called_by(self, number: int) -> None:
        """Let another node join, or be refused."""
        self.coordinator.happens(CallerConnected(0.0))
        self.coordinator.happens(HelloReceived(number, f"10.0.0.{number}", hello(number), 0.0))

    def mail(self) -> list[FromCoordinator]:
        return self.coordinator.take_mail()

    def fails(self, attempt: int) -> None:
        """Let the only worker of node 0 fail."""
        for message in (FirstFailure(attempt, FAILED, 0.1), done(attempt, [FAILED], 1.0, None)):
            self.coordinator.happens(MessageReceived(OWN, message, 1.0))


@pytest.mark.parametrize("others", [True, False])
def test_its_own_agent_has_mail(*, others: bool) -> None:
    """Whether there are others or not; each message once."""
    told = Told(1, others=others)

    told.coordinator.happens(TimePassed(0.0))
    [formed] = told.mail()

    assert isinstance(formed, WorldFormed)
    assert formed.world.master_port == 29500
    assert told.mail() == []
    asked = ["stop listening", ((OWN,), WorldFormed)] if others else []
    assert told.others.asked == asked


@pytest.mark.parametrize("others", [True, False])
def test_a_port_is_prepared_at_once(*, others: bool) -> None:
    """So that the answer to the end of an attempt is the next one, or the verdict."""
    told = Told(1, others=others)
    told.coordinator.happens(TimePassed(0.0))
    told.mail()

    told.fails(0)
    stop, again = told.mail()
    told.fails(1)
    *_, end = told.mail()

    assert isinstance(stop, Stop)
    assert isinstance(again, NextAttempt)
    assert again.world.master_port == told.port == 40001
    assert isinstance(end, Verdict)


def test_others_get_theirs() -> None:
    """What is for them alone is no mail of its own agent's."""
    told = Told(2, others=True)
    told.is_called_by(1)
    told.coordinator.happens(TimePassed(0.0))
    told.is_called_by(2)

    [formed] = told.mail()

    assert isinstance(formed, WorldFormed)
    assert told.others.asked == [
        "stop listening",
        ((OWN,), WorldFormed),
        ((1,), WorldFormed),
        ((2,), Refused),
        ("disconnect", (2,)),
    ]
    assert told.printed == ["refused n2 (pid 12) at 10.0.0.2: all 2 nodes have joined"]


def test_without_others_nothing_is_done_for_them() -> None:
    """Its own agent's mail is the same."""
    told = Told(2, others=False)
    told.is_called_by(1)
    told.coordinator.happens(TimePassed(0.0))
    told.is_called_by(2)

    [formed] = told.mail()

    assert isinstance(formed, WorldFormed)
    assert told.others.asked == []
