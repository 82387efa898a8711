"""The lease of the workers, which the fork server keeps."""

import pytest
from clusterrun.workers.fork_server.lease import WorkersLease


@pytest.fixture
def now() -> list[float]:
    """Return the time, which the test changes."""
    return [100.0]


@pytest.mark.parametrize(
    ("until", "left", "has_expired"),
    [
        # A job that ends with its nodes.
        (None, None, False),
        (107.0, 500.0, False),
        (100.125, 125.0, False),
        (100.0, None, True),
        # This process, or the whole machine, was stopped for two hours.
        (-7100.0, None, True),
    ],
)
def test_lease_expires_at_its_time(
    now: list[float], until: float | None, left: float | None, has_expired: bool
) -> None:
    lease = WorkersLease(lambda: now[0])
    lease.renew(until)

    assert (lease.milliseconds_left(), lease.has_expired()) == (left, has_expired)


def test_expired_lease_can_be_renewed(now: list[float]) -> None:
    lease = WorkersLease(lambda: now[0])
    lease.renew(90.0)
    lease.renew(101.0)
    before = lease.has_expired()
    now[0] = 101.0

    assert (before, lease.has_expired()) == (False, True)
