"""A time to come as a descriptor."""

import select
import time
from collections.abc import Iterator

import pytest
from clusterrun.rendezvous.wire.timer import Timer

NEVER = float("inf")


@pytest.fixture
def timer() -> Iterator[Timer]:
    """Return a timer that is not set."""
    made = Timer()
    yield made
    made.close()


def rings(timer: Timer, seconds: float) -> bool:
    """Tell whether it rings within ``seconds``."""
    return bool(select.select([timer], [], [], seconds)[0])


def test_a_timer_that_is_not_set_is_silent(timer: Timer) -> None:
    """As is one that is set to never."""
    timer.set(NEVER, 100.0)

    assert not rings(timer, 0.02)


def test_it_rings_when_it_is_time_and_not_before(timer: Timer) -> None:
    """And until it is set anew."""
    before = time.monotonic()
    timer.set(1000.05, 1000.0)
    early = rings(timer, 0.0)
    rang = rings(timer, 5.0)

    assert not early
    assert rang
    assert time.monotonic() - before >= 0.05
    assert rings(timer, 0.0)
    timer.set(2000.0, 1001.0)
    assert not rings(timer, 0.0)


@pytest.mark.parametrize("due", [0.0, 100.0])
def test_what_is_due_rings_at_once(timer: Timer, due: float) -> None:
    """However long it has been due."""
    timer.set(due, 100.0)

    assert rings(timer, 1.0)


def test_it_can_be_called_off(timer: Timer) -> None:
    """Never is later than anything."""
    timer.set(100.0, 100.0)
    timer.set(NEVER, 100.0)

    assert not rings(timer, 0.02)
