"""Node ranks: as set, else in order of joining; worker ranks are prefix sums."""

from hypothesis import given
from hypothesis import strategies as st

from tests.coordination.door import (
    node_ranks,
    worlds,
)
from tests.rendezvous.nodes import hello, opened_job


def test_different_nodes_have_different_numbers_of_workers() -> None:
    """2 + 3 + 1."""
    members = {7: hello(0, workers=2), 8: hello(1, workers=3), 9: hello(2, workers=1)}
    own_terms = opened_job(3, run_id="mine").terms

    found = worlds(own_terms, members, {7: 0, 8: 1, 9: 2}, 3, 29501)

    assert [world.first_rank for world in found.values()] == [0, 2, 5]
    assert [world.local_size for world in found.values()] == [2, 3, 1]
    assert {(world.size, world.nodes, world.attempt) for world in found.values()} == {(6, 3, 3)}
    assert {(world.run_id, world.master_addr, world.master_port) for world in found.values()} == {
        ("mine", "n0", 29501)
    }


def test_workers_of_each_role_are_counted_apart() -> None:
    """As in torchrun: nodes of one role need not be adjacent."""
    roles = (("trainer", 2), ("actor", 3), ("trainer", 1), ("actor", 1))
    members = {
        each: hello(each, workers=workers, role=role) for each, (role, workers) in enumerate(roles)
    }

    found = worlds(
        opened_job(4).terms, members, {each: each for each in members}, 0, 29500
    ).values()

    assert [world.first_rank for world in found] == [0, 2, 5, 6]
    assert [world.first_role_rank for world in found] == [0, 0, 2, 3]
    assert [world.role_size for world in found] == [3, 4, 3, 4]


def test_a_node_gets_the_rank_that_it_sets() -> None:
    """In any order of joining."""
    members = {0: hello(0), 1: hello(3), 2: hello(1), 3: hello(2)}

    assert node_ranks(members, {0: 0, 3: 1, 1: 2, 2: 3}, 4) == {0: 0, 2: 1, 3: 2, 1: 3}


def test_other_nodes_get_the_free_ranks_in_order_of_joining() -> None:
    """Ranks 0 and 2 are taken."""
    members = {0: hello(0), 5: hello(1), 3: hello(2), 4: hello(3)}

    assert node_ranks(members, {0: 0, 2: 3}, 4) == {0: 0, 5: 1, 3: 2, 4: 3}


def test_ranks_have_no_gap_if_some_nodes_did_not_join() -> None:
    """Of four nodes two set ranks 0 and 3, and one sets none: it comes before rank 3."""
    members = {0: hello(0), 6: hello(1), 5: hello(2)}

    assert node_ranks(members, {0: 0, 3: 6}, 4) == {0: 0, 5: 1, 6: 2}


@given(st.data())
def test_ranks_are_prefix_sums(data: st.DataObject) -> None:
    """For any number of nodes, in any order, with or without ranks."""
    count = data.draw(st.integers(1, 20))
    order = data.draw(st.permutations(range(count)))
    claimed = data.draw(st.sets(st.sampled_from(range(count))))
    workers = data.draw(st.lists(st.integers(1, 16), min_size=count, max_size=count))
    members = {each: hello(each, workers=workers[each]) for each in order}

    ranks = node_ranks(members, {each: each for each in claimed}, count)
    found = list(worlds(opened_job(count).terms, members, ranks, 0, 29500).values())

    assert [world.node_rank for world in found] == list(range(count))
    assert all(ranks[each] == each for each in claimed)
    assert found[0].first_rank == 0
    ends = [world.first_rank + world.local_size for world in found]
    assert ends == [*(world.first_rank for world in found[1:]), sum(workers)]
    unclaimed = [each for each in order if each not in claimed]
    assert [ranks[each] for each in unclaimed] == sorted(ranks[each] for each in unclaimed)


def test_log_folders_go_on_after_the_highest_of_all_nodes() -> None:
    """Nodes that keep logs on their own disks may have seen fewer attempts of the run."""
    members = {7: hello(0, kept_attempts=2), 8: hello(1, kept_attempts=3), 9: hello(2)}

    found = worlds(opened_job(3).terms, members, {7: 0, 8: 1, 9: 2}, 0, 29500)

    assert [world.kept_attempts for world in found.values()] == [3, 3, 3]
