"""Equal stacks, and differences between ranks."""

import pytest
from clusterrun.policy.stacks import (
    EXITED,
    MAX_STACK_CHARACTERS,
    OMITTED,
    GroupedStacks,
    StackGroup,
    describe_differences,
    group_stacks,
    position_of,
    runs_without_stack,
    stragglers,
)


def test_most_common_stack_comes_first() -> None:
    """Equally common stacks are ordered by rank. Ranks without a stack are last."""
    groups = [
        StackGroup((4, 5, 6), "why", found=False),
        StackGroup((3,), "b"),
        StackGroup((2, 7), "c"),
        StackGroup((0,), "b"),
        StackGroup((1,), "a"),
    ]

    assert group_stacks(groups) == (
        StackGroup((0, 3), "b"),
        StackGroup((2, 7), "c"),
        StackGroup((1,), "a"),
        StackGroup((4, 5, 6), "why", found=False),
    )


def test_rare_stacks_are_merged() -> None:
    """No rank is lost."""
    groups = [StackGroup((rank,), f"stack {rank}") for rank in range(7)]

    assert group_stacks(groups, most=2) == (
        StackGroup((0,), "stack 0"),
        StackGroup((1,), "stack 1"),
        StackGroup((2, 3, 4, 5, 6), OMITTED, found=False),
    )


def test_long_stack_is_cut() -> None:
    """A group without ranks is dropped."""
    assert group_stacks(
        [StackGroup((), "x"), StackGroup((1,), "y" * 2 * MAX_STACK_CHARACTERS)]
    ) == (StackGroup((1,), "y" * MAX_STACK_CHARACTERS),)


def test_rare_stacks_are_dropped_on_arrival() -> None:
    """At most twice as many stacks as are shown are kept."""
    stacks = GroupedStacks()
    stacks.add((StackGroup((0, 1, 2), "common"),), most=2)
    for rank in range(3, 9):
        stacks.add((StackGroup((rank,), f"rare {rank}"),), most=2)

    first, *_ = stacks.most_common(2)

    assert (first.ranks, first.text) == ((0, 1, 2), "common")


ALL_REDUCE = """\
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 30 in all_reduce
  File "/v/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/home/me/train.py", line 88 in step
  File "/home/me/train.py", line 99 in <module>"""

LOADS = """\
Thread (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1 in wait

Current thread (most recent call first):
  File "/home/me/data.py", line 41 in __next__
  File "/home/me/train.py", line 80 in <module>"""


@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (ALL_REDUCE, "all_reduce at train.py:88"),
        (LOADS, "__next__ at data.py:41"),
        ('  File "/usr/lib/python3.11/runpy.py", line 9 in run', "run at runpy.py:9"),
        ("  <no Python frame>", ""),
    ],
)
def test_position_of_stack(stack: str, place: str) -> None:
    """The position is the innermost line of the script, and the function that it calls."""
    assert position_of(stack) == place


def test_describe_differences() -> None:
    """The most common position comes first, and the ranks at other positions are named."""
    groups = [
        StackGroup((3, 17), LOADS),
        StackGroup((*range(3), 4), ALL_REDUCE),
        StackGroup((9,), ALL_REDUCE.replace("line 30", "line 31")),
        StackGroup((5,), "no handler", found=False),
    ]

    assert describe_differences(groups) == (
        "5 ranks are in all_reduce at train.py:88; ranks 3, 17 are in __next__ at data.py:41"
    )
    assert describe_differences(groups[1:]) == ""


def test_differences_name_few_positions() -> None:
    groups = [StackGroup((rank,), f'  File "/home/me/t.py", line {rank} in f') for rank in range(7)]

    assert describe_differences(groups).endswith(
        "rank 4 is in f at t.py:4; others are in 2 other places"
    )


STUCK = StackGroup((5,), "no Python stack within 2 s", found=False)


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        ((StackGroup((3, 17), LOADS), StackGroup((0, 1, 2), ALL_REDUCE)), (3, 17)),
        # One that has exited, or is stopped, keeps all others waiting.
        ((StackGroup((0, 1), ALL_REDUCE), StackGroup((2,), EXITED, found=False)), (2,)),
        ((StackGroup((3,), LOADS), StackGroup((0, 1, 2), ALL_REDUCE), STUCK), (3, 5)),
        # Two ranks: the one in a collective waits.
        ((StackGroup((0,), LOADS), StackGroup((1,), ALL_REDUCE)), (0,)),
        ((StackGroup((0, 1), ALL_REDUCE),), ()),
        # Nothing tells who waits.
        ((StackGroup((0, 1), ALL_REDUCE), *(StackGroup((n,), f"{n}") for n in (2, 3, 4))), ()),
        ((StackGroup((0,), LOADS), StackGroup((1,), LOADS.replace("41", "42"))), ()),
        ((STUCK,), ()),
        ((), ()),
    ],
)
def test_stragglers(groups: tuple[StackGroup, ...], ranks: tuple[int, ...]) -> None:
    """Stragglers are not at the position of most ranks."""
    assert stragglers(groups) == ranks


def test_runs_without_stack() -> None:
    groups = (STUCK, StackGroup((2,), EXITED, found=False), StackGroup((0,), LOADS))

    assert [runs_without_stack(each) for each in groups] == [True, False, False]
