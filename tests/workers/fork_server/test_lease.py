"""The leases that the fork server keeps: of its workers, and of an agent that a client has called."""

import pytest

from tests.workers.door import SECONDS_BETWEEN_LOOKS, AgentsLease, WorkersLease


@pytest.fixture
def now() -> list[float]:
    """Return the time, which the test changes."""
    return [100.0]


def looks(lease: AgentsLease, now: list[float], seconds: float) -> list[bool]:
    """Look as the server does for so many seconds; return what was found."""
    found = []
    for _ in range(round(seconds / SECONDS_BETWEEN_LOOKS)):
        now[0] += SECONDS_BETWEEN_LOOKS
        found.append(lease.is_over())
    return found


@pytest.mark.parametrize(
    ("until", "left", "is_over"),
    [
        # As in a job that ends with its nodes.
        (None, None, False),
        (107.0, 500.0, False),
        (100.125, 125.0, False),
        (100.0, None, True),
        # This process, or the whole machine, was stopped for two hours.
        (-7100.0, None, True),
    ],
)
def test_the_workers_lease_ends_at_its_time(
    now: list[float], until: float | None, left: float | None, is_over: bool
) -> None:
    lease = WorkersLease(lambda: now[0])
    lease.renew(until)

    assert (lease.milliseconds_left(), lease.is_over()) == (left, is_over)


def test_a_workers_lease_that_is_over_can_be_renewed(now: list[float]) -> None:
    lease = WorkersLease(lambda: now[0])
    lease.renew(90.0)
    lease.renew(101.0)
    before = lease.is_over()
    now[0] = 101.0

    assert (before, lease.is_over()) == (False, True)


def test_without_a_lease_the_agent_runs_on(now: list[float]) -> None:
    lease = AgentsLease(lambda: now[0])

    assert lease.milliseconds_left() is None
    assert not any(looks(lease, now, 100.0))


def test_a_lease_that_is_not_renewed_runs_out(now: list[float]) -> None:
    lease = AgentsLease(lambda: now[0])
    lease.renew(2.0)

    assert lease.milliseconds_left() == 500.0
    assert looks(lease, now, 3.0) == [False, False, False, True, True, True]
    assert lease.milliseconds_left() is None
    lease.renew(2.0)
    assert not lease.is_over()


def test_a_renewed_lease_goes_on(now: list[float]) -> None:
    """From the renewal on; None: the agent runs without one."""
    lease = AgentsLease(lambda: now[0])
    lease.renew(2.0)
    before = looks(lease, now, 1.5)
    lease.renew(2.0)
    after = looks(lease, now, 1.5)
    lease.renew(None)

    assert not any([*before, *after, *looks(lease, now, 100.0)])


def test_a_stopped_server_does_not_count_the_time(now: list[float]) -> None:
    """A scheduler may stop a whole node for hours."""
    lease = AgentsLease(lambda: now[0])
    lease.renew(2.0)
    now[0] += 7200.0

    assert not lease.is_over()
    assert lease.milliseconds_left() == 500.0
