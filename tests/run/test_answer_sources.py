"""Sources of answers: a relay that may hang, and child processes that may take too long."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event, LastLine, RelayAnswer, RelayAnswered
from clusterrun.policy.queries import MAX_BODY, Topic
from clusterrun.run.answer_sources import (
    MAX_UNANSWERED,
    SECONDS_TO_FORGET,
    AnswerProcesses,
    RelayQueries,
)
from msgspec.msgpack import decode

pytestmark = pytest.mark.usefixtures("no_child_left")

SEEN = {LocalRank(0): LastLine("step 1", 0.5, 1)}


class Relay:
    """Is asked, and answers when the test does."""

    def __init__(self) -> None:
        self.questions = RelayQueries()
        self.asked: list[int] = []
        self.seen: list[RelayAnswer | None] = []

    def ask(self, now: float = 0.0) -> None:
        list(self.questions.ask(self.asked.append, self._then, 0.4, now))

    def answer(self, number: int, now: float) -> None:
        list(self.questions.take(RelayAnswered(number, SEEN, now)))

    def _then(self, seen: RelayAnswer | None, _now: float) -> tuple[()]:
        self.seen.append(seen)
        return ()


@pytest.fixture
def relay() -> Relay:
    return Relay()


def test_answer_of_the_relay_is_passed_on(relay: Relay) -> None:
    relay.ask()
    assert relay.questions.due == 0.4
    relay.answer(1, 0.1)
    relay.answer(1, 0.2)

    assert relay.seen == [SEEN]
    assert relay.questions.due == NEVER


def test_relay_query_times_out(relay: Relay) -> None:
    """A late answer is dropped."""
    relay.ask()
    list(relay.questions.events(0.3))
    before = list(relay.seen)
    list(relay.questions.events(0.4))
    relay.answer(1, 0.5)

    assert (before, relay.seen) == ([], [None])


def test_hanging_relay_is_not_queried(relay: Relay) -> None:
    """Queries would pile up; it is queried again once it has answered, or after some time."""
    for _ in range(100):
        relay.ask()
    hanging = len(relay.asked)
    relay.answer(1, 1.0)
    relay.ask(1.0)
    relay.ask(1.0)
    answering = len(relay.asked)
    relay.ask(SECONDS_TO_FORGET)

    assert (hanging, answering) == (MAX_UNANSWERED, MAX_UNANSWERED + 1)
    assert len(relay.asked) == MAX_UNANSWERED + 2


class Asked:
    """Children, and the bodies that they have found."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loop = Loop[Event](lambda: self.now)
        self.children = AnswerProcesses(self.loop)
        self.answers: list[tuple[object, str]] = []

    def ask(self, find: object, topic: Topic = Topic.NATIVE, seconds: float = 30.0) -> None:
        def found() -> object:
            return find() if callable(find) else find

        list(self.children.ask(topic, found, self._then, seconds))

    def wait(self) -> None:
        """Take turns until all have answered."""
        until = time.monotonic() + 30.0
        while self.children.due != NEVER and time.monotonic() < until:
            self.loop.turn(self.now + 0.1)
        assert self.children.due == NEVER

    def _then(self, body: bytes, problem: str) -> tuple[()]:
        self.answers.append((decode(body) if body else None, problem))
        return ()


@pytest.fixture
def asked() -> Iterator[Asked]:
    made = Asked()
    yield made
    made.children.close()
    made.loop.close()
    # An agent reaps all its children.
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def test_result_of_the_child_is_the_body(asked: Asked) -> None:
    """If it fits into a message; a str says why there is none."""
    asked.ask(["x" * 900_000])
    asked.wait()
    asked.ask("has no py-spy")
    asked.wait()

    assert asked.answers == [(["x" * 900_000], ""), (None, "has no py-spy")]


def fails() -> NoReturn:
    raise AssertionError("a fault of ours")


def test_failed_child_has_no_result(asked: Asked) -> None:
    """Or its answer is too long for a message."""
    asked.ask(fails)
    asked.wait()
    asked.ask(lambda: bytes(MAX_BODY))
    asked.wait()

    failed = "has no result: the process that collects it has failed"
    assert asked.answers == [(None, failed), (None, "has too long an answer")]


def test_child_times_out(asked: Asked) -> None:
    """It is killed, and has no descriptor of the agent."""
    held = len(list(Path("/proc/self/fd").iterdir()))
    asked.ask(lambda: time.sleep(600), seconds=2.0)
    asked.now = asked.children.due
    list(asked.children.events(asked.now))

    assert asked.answers == [(None, "has no result after 2 s")]
    assert len(list(Path("/proc/self/fd").iterdir())) == held


def test_second_query_of_a_topic_is_refused(asked: Asked) -> None:
    asked.ask(os.getppid)
    asked.ask(os.getppid)
    asked.ask(os.getppid, Topic.RANKS)
    asked.wait()

    busy = (None, "is busy: other commands are already asking for its native stacks")
    assert asked.answers == [busy, (os.getpid(), ""), (os.getpid(), "")]


def test_close_kills_the_children(asked: Asked) -> None:
    asked.ask(lambda: time.sleep(600))
    began = time.monotonic()

    asked.children.close()

    assert time.monotonic() - began < 10.0
    assert asked.answers == []
