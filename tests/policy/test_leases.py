"""Until when workers may run, for a member and for node 0."""

import pytest
from clusterrun.policy.leases import FORK_SERVER_KILL_INTERVALS, GrantedLeases, MemberLease
from clusterrun.policy.settings import HeartbeatRhythm, heartbeat_rhythm, silence

from tests.network.nodes import TERMS, with_job

RHYTHM = HeartbeatRhythm(interval=1.0, timeout=15.0)


@pytest.mark.parametrize(
    ("sent", "renewed", "ends"),
    [
        ([], [], 0.0),
        ([100.0], [True], 117.25),
        ([100.0, 101.0], [True, True], 118.25),
        # Late answers come in order; one that a fault repeats changes nothing.
        ([101.0, 100.0, 101.0], [True, False, False], 118.25),
    ],
)
def test_lease_runs_from_newest_answered_heartbeat(
    sent: list[float], renewed: list[bool], ends: float
) -> None:
    """For the timeout and 2.25 intervals; there is none before the first answer."""
    lease = MemberLease(RHYTHM)

    assert [lease.answered(at) for at in sent] == renewed
    assert lease.ends == ends


@pytest.mark.parametrize(
    ("happened", "begins_after"),
    [
        ([], 0.0),
        # 15 s and three intervals after the newest answer.
        ([("answer", 1, 100.0), ("lost", 1)], 118.0),
        ([("answer", 1, 100.0), ("answer", 1, 103.5), ("lost", 1)], 121.5),
        ([("answer", 1, 100.0), ("answer", 2, 101.0), ("lost", 1)], 118.0),
        ([("answer", 1, 100.0), ("answer", 2, 101.0), ("lost", 2), ("lost", 1)], 119.0),
        # It got no answer: it has had no lease.
        ([("lost", 1)], 0.0),
        # The connection has ended orderly, before it is lost, or after.
        ([("answer", 1, 100.0), ("has_ended", 1), ("lost", 1)], 0.0),
        ([("answer", 1, 100.0), ("lost", 1), ("has_ended", 1)], 0.0),
        ([("answer", 1, 100.0), ("lost", 1), ("has_ended", 2)], 118.0),
        ([("answer", 1, 100.0), ("answer", 2, 101.0), ("lost", 2), ("has_ended", 1)], 119.0),
        # The next attempt has begun without it.
        ([("answer", 1, 100.0), ("lost", 1), ("begin",)], 0.0),
    ],
)
def test_next_attempt_waits_for_leases_of_lost_members(
    happened: list[tuple[str, float, float]], begins_after: float
) -> None:
    """Unless a kernel has reported that no worker is left."""
    grants = GrantedLeases(RHYTHM)
    for name, *values in happened:
        getattr(grants, name)(*values)

    assert grants.begins_after == begins_after


@pytest.mark.parametrize(("nodes", "timeout"), [(2, 15.0), (2, 0.5), (20_000, 15.0)])
def test_order_of_deadlines(nodes: int, timeout: float) -> None:
    """The agent, then its fork server, then node 0; a stop shorter than T has no effect."""
    rhythm = heartbeat_rhythm(nodes, timeout)
    settings = with_job(TERMS, nodes, rhythm=rhythm)
    agent, node_zero = settings.node_zero_silence, settings.member_silence

    assert (
        rhythm.timeout + rhythm.interval
        < agent
        < rhythm.after(FORK_SERVER_KILL_INTERVALS)
        < node_zero
    )
    assert node_zero - rhythm.after(FORK_SERVER_KILL_INTERVALS) == pytest.approx(
        0.75 * rhythm.interval
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(18.0, "has been silent for 18 s"), (7.4500001, "has been silent for 7.5 s")],
)
def test_silence_in_messages(seconds: float, text: str) -> None:
    assert silence(seconds) == text
