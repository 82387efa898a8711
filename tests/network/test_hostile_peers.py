"""Whatever members send node 0, and node 0 sends a member, the agent ends in order and soon.

Peers send valid messages, messages with wrong fields, random messages and garbage. Many sessions have a world,
failures and further attempts. A test fails on an exception, an endless loop, a message that no other agent
accepts, and too many printed lines.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterable

import psutil
import pytest
from clusterrun.network import member
from clusterrun.network.member import Member
from clusterrun.policy import cause, joining, suspension
from clusterrun.policy.members import Node
from clusterrun.policy.notices import LineLimit

from tests.network.hostile_peers import MemberSession, NodeZeroSession
from tests.network.hostile_sessions import KINDS, Session, Unsafe, replace_sockets
from tests.rounds import in_all_rounds, numbers

SESSIONS = 150
LONG_SESSIONS = 10_000

Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def without_sockets(monkeypatch: Patch) -> None:
    replace_sockets(monkeypatch)


def reached(sessions: Callable[[int, str], Session], seeds: Iterable[int]) -> Counter[str]:
    """Let sessions of all kinds run; return how many have reached which state."""
    found = Counter[str]()
    kinds = list(KINDS)
    for seed in seeds:
        session = sessions(seed, kinds[seed % len(kinds)])
        try:
            session.run()
        except Exception as error:
            raise Unsafe(f"session {seed}: {error!r}") from error
        found.update(state for state, times in session.seen.items() if times)
    return found


def test_node_zero_survives_members_that_send_anything() -> None:
    """Most sessions reach a world, and some a second attempt."""
    seeds = numbers(SESSIONS)

    found = reached(NodeZeroSession, seeds)

    assert found["world"] > 0.6 * len(seeds)
    assert min(found["restart"], found["failure"]) > 0.08 * len(seeds)
    assert min(found["HoldRanks"], found["stacks"], found["query"]) > 0.02 * len(seeds)


def test_member_survives_a_node_zero_that_sends_anything() -> None:
    """Most sessions reach a world and an end."""
    seeds = numbers(SESSIONS)

    found = reached(MemberSession, seeds)

    assert min(found["world"], found["done"]) > 0.8 * len(seeds)
    assert min(found["restart"], found["failure"]) > 0.2 * len(seeds)


@pytest.mark.long
@pytest.mark.timeout(in_all_rounds(3000))
@pytest.mark.parametrize("sessions", [NodeZeroSession, MemberSession])
def test_ten_thousand_sessions_use_no_more_memory(
    sessions: Callable[[int, str], Session],
) -> None:
    seeds = numbers(LONG_SESSIONS)
    first = len(seeds) // 5
    reached(sessions, seeds[:first])
    objects, resident = in_memory()

    reached(sessions, seeds[first:])

    more_objects, more_resident = in_memory()
    assert more_objects < objects + 1000
    assert more_resident < resident + 100


def in_memory() -> tuple[int, float]:
    """Return how many objects this process has, and how much memory in MiB."""
    gc.collect()
    return len(gc.get_objects()), psutil.Process().memory_info().rss / 2**20


# That it notices faults.


def fits_any_world(patch: Patch) -> None:
    patch.setattr(member, "check_world", lambda *_: None)


def takes_anything_at_any_time(patch: Patch) -> None:
    patch.setattr(Member, "_is_allowed", lambda *_: True)


def prints_without_end(patch: Patch) -> None:
    patch.setattr(LineLimit, "allows", lambda *_: True)


def believes_any_rank(patch: Patch) -> None:
    patch.setattr(Node, "may_send", lambda *_: True)


def takes_any_programs(patch: Patch) -> None:
    patch.setattr(joining, "_fits_programs", lambda *_: True)


def saves_at_any_mark(patch: Patch) -> None:
    patch.setattr(suspension, "MAX_STEP_COUNT", 1 << 62)


def searches_whole_lines(patch: Patch) -> None:
    patch.setattr(cause, "MAX_SEARCHED_CHARACTERS", 1 << 20)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("sessions", "fault"),
    [
        (MemberSession, fits_any_world),
        (MemberSession, takes_anything_at_any_time),
        (MemberSession, prints_without_end),
        (NodeZeroSession, prints_without_end),
        (NodeZeroSession, takes_any_programs),
        (NodeZeroSession, saves_at_any_mark),
        (NodeZeroSession, searches_whole_lines),
        (NodeZeroSession, believes_any_rank),
    ],
)
def test_missing_check_is_detected(
    sessions: Callable[[int, str], Session], fault: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    """Each check of the product is needed."""
    fault(monkeypatch)

    with pytest.raises(Unsafe):
        reached(sessions, range(4000))
