"""Lists of hosts and counts, as Slurm writes them."""

from collections.abc import Callable

import pytest
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.hosts import expand_counts, expand_hosts
from hypothesis import given
from hypothesis import strategies as st


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
        ("n[0-8/4,9]", "n0 n4 n8 n9"),
        ("n[08-100/46]", "n08 n54 n100"),
        ("@x[1-2]", "@x1 @x2"),
        ("", ""),
        # Ranks follow the order, so hosts are not sorted and duplicates stay.
        ("n2,n0", "n2 n0"),
        ("n[3,1]", "n3 n1"),
        ("z[1-2],a", "z1 z2 a"),
        ("r[2,1]n[1,0]", "r2n1 r2n0 r1n1 r1n0"),
        ("n1,n1", "n1 n1"),
    ],
)
def test_host_list(text: str, names: str) -> None:
    """Ranges keep leading zeros."""
    assert expand_hosts(Setting(text, "SLURM_NODELIST")) == Setting(
        tuple(names.split()), "SLURM_NODELIST"
    )


NOT_HOSTS = "{}: {!r} is not a list of hosts"
NOT_COUNTS = "{}: {!r} is not a list of counts"
TOO_MANY = "{{}}: {{!r}} has {} hosts, but a job has 1,000,000 at most"


@pytest.mark.parametrize(
    ("expand", "text", "message"),
    [
        *(
            (expand_hosts, text, NOT_HOSTS)
            for text in (
                *("n[0-", "n]", "n[a-b]", "n[3-1]", "n[]", "n[1-2", "n[[1]]", "n][1]", "n[1-]"),
                *("n[-1]", "n[1-3/0]", "n[1 - 3]", "n[1,]", "n[\u0663-5]", f"n[{'9' * 19}]"),
                # How many zeros?
                *("n[8-011]", "n[001-3]"),
                *("n\x1b[1]", "a,n\u202e", "n\t1"),
            )
        ),
        *(
            (expand_counts, text, NOT_COUNTS)
            for text in ("", "two", "2(x", "2,,1", "2(3)", "2(x3) 1", "-1", "2(x0)")
        ),
        # The hosts are counted before their names are made.
        (expand_hosts, "n[1-50000000]", TOO_MANY.format("50,000,000")),
        (expand_hosts, "r[1-2000]n[1-2000]", TOO_MANY.format("4,000,000")),
        (expand_hosts, "a,n[1-1000000]", TOO_MANY.format("1,000,001")),
        (expand_hosts, "n[0-999999999999999999]", TOO_MANY.format("1,000,000,000,000,000,000")),
        (expand_counts, "2(x50000000)", TOO_MANY.format("50,000,000")),
    ],
)
def test_wrong_list_is_an_error(
    expand: Callable[[Setting[str]], object], text: str, message: str
) -> None:
    """The message has the origin of the list."""
    with pytest.raises(UsageError) as caught:
        expand(Setting(text, "SLURM_VARIABLE"))

    assert caught.value.message == message.format("SLURM_VARIABLE", text)


def test_long_list_is_shortened_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        expand_hosts(Setting("gpu," * 100_000 + "n[", "x"))

    assert caught.value.message == f"x: '{'gpu,' * 15}...' is not a list of hosts"


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=5))
def test_count_list(pairs: list[tuple[int, int]]) -> None:
    """``2(x3),1`` is 2, 2, 2, 1."""
    text = ",".join(f"{n}(x{times})" if times > 1 else f"{n}" for n, times in pairs)

    assert expand_counts(Setting(text, "x")) == tuple(n for n, times in pairs for _ in range(times))
