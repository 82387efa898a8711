"""Who works in the next attempt: each lost node's place goes to a node that waits."""

from itertools import chain, combinations, product
from typing import Any

from tests.coordination.door import (
    Candidates,
    Hello,
    ReformRules,
    may_go_on,
    next_places,
)
from tests.rendezvous.nodes import hello

FIXED = ReformRules()


def hellos(*numbers: int, **values: Any) -> dict[int, Hello]:
    """Return what these connections have sent, each from its own host."""
    return {number: hello(number, **values) for number in numbers}


def test_all_others_keep_their_places() -> None:
    """In every job of at most four nodes and three spares, whichever are lost."""
    for working, spares in product(range(1, 5), range(4)):
        ranks = {number: number for number in range(working)}
        waiting = list(range(10, 10 + spares))
        losses = chain.from_iterable(combinations(ranks, count) for count in range(working + 1))
        for lost in losses:
            places = next_places(Candidates(ranks, lost, waiting), hellos(*ranks, *waiting), FIXED)

            if len(lost) > spares:
                assert places is None
                continue
            assert places is not None
            assert list(places.values()) == list(range(working))
            assert set(places) == set(ranks) - set(lost) | set(waiting[: len(lost)])
            assert all(places[each] == ranks[each] for each in places.keys() & ranks.keys())


def test_a_node_that_is_back_takes_its_own_place() -> None:
    """Before spares that have waited longer."""
    known = hellos(0, 1, 10, 11) | {12: hello(12, host="n1")}

    assert next_places(Candidates({0: 0, 1: 1}, {1}, [10, 11, 12]), known, FIXED) == {0: 0, 12: 1}


def test_a_node_with_the_rank_of_a_lost_one_takes_its_place() -> None:
    """Another host, which the scheduler has started for it."""
    known = hellos(0, 1, 10) | {11: hello(11, rank=1)}

    assert next_places(Candidates({0: 0, 1: 1}, {1}, [10, 11]), known, FIXED) == {0: 0, 11: 1}


def test_a_bad_node_is_left_out_in_favour_of_one_that_waits() -> None:
    """Unless none fits; a lost node's place comes first, and even a bad node may take it."""
    known = hellos(0, 1, 2, 10, 11)

    def places(lost: set[int], waiting: list[int], bad: set[int]) -> dict[int, int] | None:
        return next_places(Candidates({0: 0, 1: 1, 2: 2}, lost, waiting, bad), known, FIXED)

    assert places(set(), [10, 11], {1}) == {0: 0, 10: 1, 2: 2}
    assert places(set(), [], {1}) == {0: 0, 1: 1, 2: 2}
    assert places(set(), [11], {1, 2}) == {0: 0, 11: 1, 2: 2}
    assert places({2}, [10], {1}) == {0: 0, 1: 1, 10: 2}
    assert places({2}, [10, 11], {10}) == {0: 0, 1: 1, 11: 2}
    assert places({2}, [10], {10}) == {0: 0, 1: 1, 10: 2}
    assert places({2}, [10], {1, 10}) == {0: 0, 1: 1, 10: 2}


def test_an_elastic_world_leaves_a_bad_node_out_if_enough_are_left() -> None:
    """Otherwise it works on."""
    rules = ReformRules(fewest=2, most=4)
    ranks = {0: 0, 1: 1, 2: 2}

    assert next_places(Candidates(ranks, (), (), {1}), {}, rules) == {0: 0, 2: 1}
    assert next_places(Candidates(ranks, {2}, (), {1}), {}, rules) == {0: 0, 1: 1}
    assert next_places(Candidates(ranks, {2}, [10], {1}), {}, rules) == {0: 0, 10: 1}


def test_a_spare_has_as_many_workers() -> None:
    """Others would move the ranks of all nodes after it."""
    known = hellos(0, 1, workers=2) | {10: hello(10), 11: hello(11, workers=2, role="reader")}
    fits = {12: hello(12, workers=2)}

    assert next_places(Candidates({0: 0, 1: 1}, {1}, [10, 11]), known, FIXED) is None
    assert next_places(Candidates({0: 0, 1: 1}, {1}, [10, 11, 12]), known | fits, FIXED) == {
        0: 0,
        12: 1,
    }


def test_at_most_one_part_of_a_job_may_go_on() -> None:
    """For every split of at most five agents in two parts that do not see each other."""
    for count in range(1, 6):
        roster = frozenset(range(count))
        for size in range(count + 1):
            for part in map(frozenset, combinations(roster, size)):
                one = may_go_on(roster, roster - part, ())
                other = may_go_on(roster, part, ())

                assert not (one and other and part not in (roster, frozenset()))


def test_agents_that_have_ended_need_no_majority() -> None:
    """All of the missing ones have; with one that may still run, the majority counts."""
    roster = frozenset(range(4))

    assert may_go_on(roster, {1, 2, 3}, {1, 2, 3})
    assert not may_go_on(roster, {1, 2, 3}, {1, 2})
    assert not may_go_on(roster, {1, 2}, {1})
    assert may_go_on(roster, {1}, ())


def test_an_elastic_world_has_the_nodes_that_are_left() -> None:
    """In their order, newcomers last, up to MAX, in multiples of K, and never fewer than MIN."""
    for fewest, most, multiple in [(1, 4, 1), (2, 6, 2), (3, 5, 1), (4, 8, 4)]:
        rules = ReformRules(fewest=fewest, most=most, multiple=multiple)
        for working, waits in product(range(1, most + 1), range(4)):
            ranks = {number: number for number in range(working)}
            waiting = list(range(10, 10 + waits))
            for lost in chain.from_iterable(combinations(ranks, count) for count in range(working)):
                places = next_places(Candidates(ranks, lost, waiting), {}, rules)

                present = [each for each in ranks if each not in lost] + waiting
                size = min(len(present), most) // multiple * multiple
                if size < fewest:
                    assert places is None
                else:
                    assert places == {each: rank for rank, each in enumerate(present[:size])}
