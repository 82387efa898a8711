"""Host lists and counts, as Slurm writes them."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.job.door import Fact, UsageError, expand_counts, expand_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n0", "n0"),
        ("n0,n1", "n0 n1"),
        ("gpu[01-03,07],login", "gpu01 gpu02 gpu03 gpu07 login"),
        ("n[08-11]", "n08 n09 n10 n11"),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("rack[1-2]-n[01-02]", "rack1-n01 rack1-n02 rack2-n01 rack2-n02"),
        ("a-b[1-2],c[5]", "a-b1 a-b2 c5"),
        ("ip-10-0-[3-4].ec2", "ip-10-0-3.ec2 ip-10-0-4.ec2"),
        ("", ""),
    ],
)
def test_lists(text: str, names: str) -> None:
    """Ranges keep their zeros."""
    assert expand_hosts(Fact(text, "SLURM_NODELIST")) == Fact(
        tuple(names.split()), "SLURM_NODELIST"
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n2,n0", "n2 n0"),
        ("n[3,1]", "n3 n1"),
        ("z[1-2],a", "z1 z2 a"),
        ("r[2,1]n[1,0]", "r2n1 r2n0 r1n1 r1n0"),
        ("n1,n1", "n1 n1"),
    ],
)
def test_the_order_is_the_lists_own(text: str, names: str) -> None:
    """Ranks go by it, so nothing is sorted and nothing is dropped."""
    assert expand_hosts(Fact(text, "x")).value == tuple(names.split())


@pytest.mark.parametrize("text", ["n[0-", "n]", "n[a-b]", "n[3-1]", "n[]", "n[1-2"])
def test_lists_that_are_none(text: str) -> None:
    """The error names the origin of the list."""
    with pytest.raises(UsageError) as caught:
        expand_hosts(Fact(text, "SLURM_NODELIST"))

    assert caught.value.message == f"SLURM_NODELIST: {text!r} is not a list of hosts"


def test_no_groups_of_hosts_are_looked_up() -> None:
    """ClusterShell would read @NAME from its own files; a scheduler's list has names alone."""
    assert expand_hosts(Fact("@x[1-2]", "x")).value == ("@x1", "@x2")


def test_names_alone_load_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a range is worth the time that importing ClusterShell takes."""
    monkeypatch.setitem(sys.modules, "ClusterShell.NodeSet", None)

    assert expand_hosts(Fact("n0,n1", "x")).value == ("n0", "n1")


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=5))
def test_counts(pairs: list[tuple[int, int]]) -> None:
    """``2(x3),1`` is 2, 2, 2, 1; a count that comes once may stand alone."""
    text = ",".join(f"{n}(x{times})" if times > 1 else f"{n}" for n, times in pairs)

    assert expand_counts(Fact(text, "x")) == tuple(n for n, times in pairs for _ in range(times))


@pytest.mark.parametrize("text", ["", "two", "2(x", "2,,1", "2(3)", "2(x3) 1", "-1"])
def test_counts_that_are_none(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UsageError) as caught:
        expand_counts(Fact(text, "SLURM_TASKS_PER_NODE"))

    assert caught.value.message == f"SLURM_TASKS_PER_NODE: {text!r} is not a list of counts"
