"""Findings about differences between nodes."""

from collections.abc import Mapping, Sequence

import pytest
from clusterrun.clients.doctor import compare
from clusterrun.clients.doctor.compare import NodeFacts, merge_findings, node_labels
from clusterrun.clients.doctor.this_machine import Finding, Level
from clusterrun.clients.doctor.torch_program import Product, TorchFacts, ring_rounds
from msgspec.structs import replace

from tests.doctor.nodes import LABELS, NODES

FAST, SLOW = 1e9, 1e8


def problem_nodes(found: Sequence[Finding]) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each problem by its subject."""
    return {each.what: each.nodes for each in found if each.level is not Level.OK}


@pytest.mark.parametrize(
    ("what", "level"),
    [("torch", Level.FAILURE), ("NCCL", Level.FAILURE), ("driver", Level.WARNING)],
)
def test_minority_version_is_named(what: str, level: Level) -> None:
    """A missing package counts as a version."""
    named = replace(NODES[2], versions={**NODES[2].versions, what: "1.2"})

    [finding, equal] = compare.compare_versions(LABELS, [*NODES[:2], named])

    assert (finding.what, finding.level, finding.nodes) == (f"version of {what}", level, ("n2",))
    assert "1.2 on n2" in finding.found
    assert equal.level is Level.OK


def test_equal_versions_give_one_finding() -> None:
    [finding] = compare.compare_versions(LABELS, NODES)

    assert (finding.level, finding.found) == (
        Level.OK,
        "clusterrun 0.1.0, torch 2.13.0, Python 3.12.1",
    )


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ((0.0, 0.2, -0.3), ()),
        ((0.0, 5.0, 0.1), ("n1",)),
        ((0.0, 60.0, 60.1), ("n0",)),
    ],
)
def test_clock_that_differs_from_median_is_named(
    offsets: Sequence[float], named: tuple[str, ...]
) -> None:
    """If node 0's clock differs, node 0 is named, not all others."""
    found = list(compare.compare_clocks(LABELS, offsets))

    assert tuple(problem_nodes(found).values()) == ((named,) if named else ())


@pytest.mark.parametrize(
    ("seen", "level"),
    [
        ((True, True, True), Level.OK),
        ((True, False, True), Level.FAILURE),
        ((True, False, False), Level.WARNING),
        ((False, False, False), Level.WARNING),
    ],
)
def test_shared_folder(seen: Sequence[bool], level: Level) -> None:
    """A folder that only some nodes share is a failure."""
    assert compare.compare_folder(LABELS, "/work", seen).level is level


def test_slow_gpu_is_named() -> None:
    """GPUs are compared with GPUs, CPUs with CPUs."""
    usual = TorchFacts(
        products=(Product("CPU", 90.0), Product("GPU 0", 900.0), Product("GPU 1", 900.0))
    )
    slow = TorchFacts(
        products=(Product("CPU", 95.0), Product("GPU 0", 900.0), Product("GPU 1", 400.0))
    )
    by_node = [usual, usual, slow]

    found = list(compare.compare_products(LABELS, by_node))

    assert problem_nodes(found) == {"matrix product": ("n2",)}
    assert [each.found for each in found if each.level is not Level.OK] == [
        "n2 (GPU 1): 400 of 900 Gflop/s"
    ]


def test_node_whose_matrix_product_fails_is_named() -> None:
    """The devices before the failing one are compared as usual."""
    good = TorchFacts(products=(Product("CPU", 90.0), Product("GPU 0", 900.0)))
    bad = TorchFacts(
        products=(Product("CPU", 90.0),), fault="RuntimeError: CUDA error: out of memory"
    )

    found = list(compare.compare_products(LABELS, [good, bad, good]))

    assert problem_nodes(found) == {"matrix product": ("n1",)}
    assert "fails on n1: RuntimeError: CUDA error: out of memory" in [each.found for each in found]


@pytest.mark.parametrize(
    ("links", "named"),
    [
        ({(0, 1): FAST, (1, 2): FAST, (2, 0): FAST}, []),
        ({(0, 1): SLOW, (1, 2): SLOW, (2, 0): FAST}, [("n1",)]),
        ({(0, 1): FAST, (1, 2): SLOW, (2, 0): FAST}, [("n1", "n2")]),
        ({(0, 1): SLOW}, []),
    ],
)
def test_slow_links(links: Mapping[tuple[int, int], float], named: list[tuple[str, ...]]) -> None:
    """A node whose links are all slow is named once; a single link has nothing to compare with."""
    found = list(compare.compare_links(LABELS, links))

    assert [each.nodes for each in found if each.level is not Level.OK] == named


@pytest.mark.parametrize("size", [2, 3, 4, 5, 16, 17])
def test_ring_rounds_have_each_link_once(size: int) -> None:
    """No node is twice in a round."""
    rounds = ring_rounds(size)

    links = [link for each in rounds for link in each]
    assert len(set(links)) == len(links) == (1 if size == 2 else size)
    for each in rounds:
        members = [rank for link in each for rank in link]
        assert len(set(members)) == len(members)


def test_equal_findings_of_nodes_are_merged() -> None:
    """Equal problems of several nodes are merged, with their nodes."""
    good = Finding(Level.OK, "open files", "1024")
    low = Finding(Level.FAILURE, "open files", "256", "raise it")

    found = list(merge_findings(LABELS, [[good], [low], [low]]))

    assert [(each.found, each.nodes) for each in found] == [
        ("1 node: 1024", ()),
        ("n1, n2: 256", ("n1", "n2")),
    ]


def test_labels_of_equal_host_names_have_node_rank() -> None:
    nodes: list[NodeFacts] = [
        replace(NODES[0], host="box"),
        replace(NODES[1], host="box"),
        NODES[2],
    ]

    assert node_labels(nodes) == ("box/0", "box/1", "n2")


NCCL = """\
NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with \
NCCL_DEBUG=WARN for details), NCCL version 2.28.9
{kind}: This usually reflects ...
Last error:
{reason}
"""
"""The message of torch's exception if NCCL fails."""

TIMEOUT = "wait timeout after 10000ms, keys: /default_pg/0//cuda//0\nException raised from ..."


@pytest.mark.parametrize(
    ("fault", "reason", "is_of_network"),
    [
        (
            NCCL.format(kind="ncclInvalidUsage", reason="Duplicate GPU detected : rank 0 and ..."),
            "Duplicate GPU detected : rank 0 and ...",
            False,
        ),
        (
            NCCL.format(kind="ncclInvalidUsage", reason="Bootstrap : no socket interface found"),
            "Bootstrap : no socket interface found",
            True,
        ),
        (
            NCCL.format(kind="ncclRemoteError", reason="socketProgress: Connection closed by ..."),
            "socketProgress: Connection closed by ...",
            True,
        ),
        (
            NCCL.format(kind="ncclUnhandledCudaError", reason="").strip(),
            NCCL.partition("\n")[0],
            False,
        ),
        (TIMEOUT, "wait timeout after 10000ms, keys: /default_pg/0//cuda//0", True),
    ],
)
def test_reason_and_advice_of_failed_all_reduce(
    fault: str, reason: str, *, is_of_network: bool
) -> None:
    """NCCL's reason is in its last line; an interface is only advised for network errors."""
    found = compare.describe_failed_all_reduce("nccl", LABELS, ["", fault, fault])

    assert (found.what, found.level, found.nodes) == (
        "all_reduce (nccl)",
        Level.FAILURE,
        ("n1", "n2"),
    )
    assert found.found == f"fails on n1, n2: {reason}"
    assert ("SOCKET_IFNAME" in found.advice) == is_of_network
    assert found.advice.endswith("NCCL_DEBUG=INFO shows what NCCL chooses")
