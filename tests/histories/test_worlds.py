"""Which ranks each node gets: those it sends, else in the order of joining."""

from hypothesis import given
from hypothesis import strategies as st

from tests.histories.join_history import JoinHistory


def test_nodes_have_different_numbers_of_ranks() -> None:
    """2 + 3 + 1: all have one master address, and logs continue after the highest attempt that any node has kept."""
    job = JoinHistory(nodes=3, workers=2, run_id="mine", kept_attempts=2)

    job.joins(workers=3, kept_attempts=3).joins(workers=1).settles()

    assert job.new_lines()[1:] == [
        "node 0 starts ranks 0-1, attempt 0",
        "node 1 starts ranks 2-4, attempt 0",
        "node 2 starts rank 5, attempt 0",
    ]
    rest = "at n0:29500, run mine, logs after 3"
    assert [job.world_text(node) for node in range(3)] == [
        f"node 0 of 3, ranks 0-1 of 6, in the role 0-1 of 6, {rest}",
        f"node 1 of 3, ranks 2-4 of 6, in the role 2-4 of 6, {rest}",
        f"node 2 of 3, ranks 5-5 of 6, in the role 5-5 of 6, {rest}",
    ]


def test_each_role_has_its_own_ranks() -> None:
    """As in torchrun, nodes of one role need not be consecutive."""
    job = JoinHistory(nodes=4, workers=2, role="trainer").joins(workers=3, role="actor")

    job.joins(workers=1, role="trainer").joins(workers=1, role="actor").settles()

    assert [job.world_text(node).partition(", at")[0] for node in range(4)] == [
        "node 0 of 4, ranks 0-1 of 7, in the role 0-1 of 3",
        "node 1 of 4, ranks 2-4 of 7, in the role 0-2 of 4",
        "node 2 of 4, ranks 5-5 of 7, in the role 2-2 of 3",
        "node 3 of 4, ranks 6-6 of 7, in the role 3-3 of 4",
    ]


def test_ranks_have_no_gap_if_nodes_are_missing() -> None:
    """Of four nodes one sends rank 3, and one sends none: it comes before that."""
    job = JoinHistory(nodes=4, least=3, rank=0).joins(rank=3).joins().time_passes(30).settles()

    assert job.new_lines()[-3:] == [
        "node 0 starts rank 0, attempt 0",
        "node 1 starts rank 2, attempt 0",
        "node 2 starts rank 1, attempt 0",
    ]


@given(st.data())
def test_ranks_have_no_gap(data: st.DataObject) -> None:
    """For any nodes, in any order of joining, with or without ranks of their own."""
    workers = data.draw(st.lists(st.integers(1, 16), min_size=1, max_size=8))
    total = len(workers)
    free = [0, *data.draw(st.permutations(range(1, total)))]
    says = [data.draw(st.sampled_from([None, rank])) for rank in free]
    job = JoinHistory(total, workers[0], rank=says[0])
    for size, said in list(zip(workers, says, strict=True))[1:]:
        job.joins(size, said)
    job.settles()

    ranks = [int(job.world_text(node).split()[1]) for node in range(total)]
    assert all(said in {None, rank} for said, rank in zip(says, ranks, strict=True))
    others = [rank for said, rank in zip(says, ranks, strict=True) if said is None]
    assert others == sorted(others)
    for node, rank in enumerate(ranks):
        first = sum(workers[each] for each in range(total) if ranks[each] < rank)
        of_all = f"ranks {first}-{first + workers[node] - 1} of {sum(workers)},"
        assert job.world_text(node).startswith(f"node {rank} of {total}, {of_all}")


STEPS = st.one_of(
    st.tuples(st.just("joins"), st.none() | st.integers(0, 3), st.sampled_from("3333333334")),
    st.tuples(st.sampled_from(["connects", "hangs up"])),
    st.tuples(st.just("goes"), st.integers(0, 5)),
    st.tuples(st.just("time_passes"), st.floats(0, 100)),
)


@given(st.lists(STEPS, max_size=30))
def test_nodes_join_and_leave_in_any_order(steps: list[tuple[object, ...]]) -> None:
    """All nodes begin once, each with its own rank, or none does; when is known beforehand."""
    job, callers, members, silent = JoinHistory(nodes=3), 0, list[int](), 0
    for step in steps:
        match step:
            case ("joins", int() | None as rank, str(nodes)):
                callers += 1
                members.append(callers)
                job.joins(rank=rank, must={"nnodes": nodes})
            case ("connects",):
                callers, silent = callers + 1, silent + 1
                job.connects()
            case ("hangs up",) if silent:
                silent -= 1
                job.disconnects()
            case ("goes", int(which)) if which < len(members):
                job.loses_node(members.pop(which))
            case ("time_passes", float(seconds)):
                job.time_passes(seconds)
        job.settles()
    lines = job.time_passes(600).settles().new_lines()

    starts = [line for line in lines if " starts " in line]
    ranks = sorted(line.partition(" starts ")[2] for line in starts)
    assert ranks in ([], [f"rank {rank}, attempt 0" for rank in range(3)])
    assert lines.count("node 0 closes the port") == bool(starts)
    assert starts or any(line.startswith("node 0 gives up") for line in lines)
    refused = {line.split()[1] for line in lines if " gives up" in line}
    assert not refused & {line.split()[1] for line in starts}
