"""How the workers of several nodes exchange values, over real sockets."""

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.node_checks.door import (
    Meeting,
    Silent,
    peer_on,
)

SECONDS = 60.0


@pytest.fixture
def ranks() -> Iterator[Sequence[Meeting]]:
    """Return the part of each of three ranks."""
    ends = [socket.socketpair() for _ in range(2)]
    first = Meeting(0, [peer_on(ours, rank) for rank, (ours, _) in enumerate(ends, 1)])
    others = [Meeting(rank, [peer_on(theirs, 0)]) for rank, (_, theirs) in enumerate(ends, 1)]
    yield (first, *others)
    for each in (first, *others):
        each.close()


def test_all_get_the_values_of_all(ranks: Sequence[Meeting]) -> None:
    """In the order of ranks."""
    with ThreadPoolExecutor(3) as pool:
        shared = list(pool.map(lambda each: each.share(str(each.rank), str, SECONDS), ranks))
        collected = list(pool.map(lambda each: each.collect(each.rank, int, SECONDS), ranks))
        announced = list(pool.map(lambda each: each.announce(each.rank, int), ranks))

    assert shared == [["0", "1", "2"]] * 3
    assert collected == [[0, 1, 2], [], []]
    assert announced == [0, 0, 0]


def test_a_silent_rank_is_named(ranks: Sequence[Meeting]) -> None:
    ranks[1].collect("here", str, SECONDS)

    with pytest.raises(Silent) as raised:
        ranks[0].collect("here", str, 0.2)

    assert (raised.value.rank, raised.value.how) == (2, "does not answer within 0.2 s")


def test_a_rank_that_has_gone_is_named(ranks: Sequence[Meeting]) -> None:
    """At once."""
    ranks[1].close()

    with pytest.raises(Silent) as raised:
        ranks[0].collect("here", str, SECONDS)

    assert (raised.value.rank, raised.value.how) == (1, "has closed its connection")
