"""Grouping of equal stacks."""

from clusterrun.domain.stacks import LEFT_OUT, LONGEST, GroupedStacks, StackGroup, grouped


def test_the_most_common_first() -> None:
    """Then by the lowest rank; those that have none are last, however many."""
    groups = [
        StackGroup((4, 5, 6), "why", found=False),
        StackGroup((3,), "b"),
        StackGroup((2, 7), "c"),
        StackGroup((0,), "b"),
        StackGroup((1,), "a"),
    ]

    assert grouped(groups) == (
        StackGroup((0, 3), "b"),
        StackGroup((2, 7), "c"),
        StackGroup((1,), "a"),
        StackGroup((4, 5, 6), "why", found=False),
    )


def test_too_many_are_cut_short() -> None:
    """No rank is forgotten."""
    groups = [StackGroup((rank,), f"stack {rank}") for rank in range(7)]

    assert grouped(groups, most=2) == (
        StackGroup((0,), "stack 0"),
        StackGroup((1,), "stack 1"),
        StackGroup((2, 3, 4, 5, 6), LEFT_OUT, found=False),
    )


def test_one_that_is_too_long() -> None:
    """It is cut, and ranks of none are left out."""
    assert grouped([StackGroup((), "x"), StackGroup((1,), "y" * 2 * LONGEST)]) == (
        StackGroup((1,), "y" * LONGEST),
    )


def test_rare_stacks_are_dropped_as_they_come_in() -> None:
    """Of many different stacks, about as many as are shown are kept."""
    stacks = GroupedStacks()
    stacks.add((StackGroup((0, 1, 2), "common"),), most=2)
    for rank in range(3, 9):
        stacks.add((StackGroup((rank,), f"rare {rank}"),), most=2)

    first, *_ = stacks.most_common(2)

    assert (first.ranks, first.text) == ((0, 1, 2), "common")
