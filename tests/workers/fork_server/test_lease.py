"""The lease of the workers: it runs out unless it is renewed, and only while this process runs."""

import pytest

from tests.workers.door import SECONDS_BETWEEN_LOOKS, Lease


@pytest.fixture
def now() -> list[float]:
    """Return the time, which the test changes."""
    return [100.0]


def looks(lease: Lease, now: list[float], seconds: float) -> list[bool]:
    """Look as the server does for so many seconds; return what was found."""
    found = []
    for _ in range(round(seconds / SECONDS_BETWEEN_LOOKS)):
        now[0] += SECONDS_BETWEEN_LOOKS
        found.append(lease.is_over())
    return found


def test_without_a_lease_workers_run_on(now: list[float]) -> None:
    """As in a job that ends with its nodes."""
    lease = Lease(lambda: now[0])

    assert lease.milliseconds_left() is None
    assert not any(looks(lease, now, 100.0))


def test_a_lease_that_is_not_renewed_runs_out(now: list[float]) -> None:
    """Workers that start later are killed, too, until it is renewed."""
    lease = Lease(lambda: now[0])
    lease.renew(2.0)

    assert lease.milliseconds_left() == 500.0
    assert looks(lease, now, 3.0) == [False, False, False, True, True, True]
    assert lease.milliseconds_left() is None
    lease.renew(2.0)
    assert not lease.is_over()


def test_a_renewed_lease_goes_on(now: list[float]) -> None:
    """From the renewal on; None: workers run without one."""
    lease = Lease(lambda: now[0])
    lease.renew(2.0)
    before = looks(lease, now, 1.5)
    lease.renew(2.0)
    after = looks(lease, now, 1.5)
    lease.renew(None)

    assert not any([*before, *after, *looks(lease, now, 100.0)])


def test_a_stopped_server_does_not_count_the_time(now: list[float]) -> None:
    """A scheduler may stop a whole node for hours."""
    lease = Lease(lambda: now[0])
    lease.renew(2.0)
    now[0] += 7200.0

    assert not lease.is_over()
    assert lease.milliseconds_left() == 500.0
