"""What differs between nodes, from what they have told."""

from collections.abc import Mapping, Sequence

import pytest
from clusterrun.clients.doctor import compare
from clusterrun.clients.doctor.compare import NodeFacts, labels_of, merged
from clusterrun.clients.doctor.this_machine import Finding, Level
from clusterrun.clients.doctor.torch_program import Product, TorchFacts, ring_rounds
from msgspec.structs import replace

from tests.doctor.nodes import LABELS, NODES

WELL, SLOW = 1e9, 1e8


def faults(found: Sequence[Finding]) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each finding that is not well."""
    return {each.what: each.nodes for each in found if each.level is not Level.OK}


@pytest.mark.parametrize(
    ("what", "level"),
    [("torch", Level.FAILURE), ("NCCL", Level.FAILURE), ("driver", Level.WARNING)],
)
def test_one_node_has_another_version(what: str, level: Level) -> None:
    """The one that is in the minority is named; a missing one is a difference, too."""
    odd = replace(NODES[2], versions={**NODES[2].versions, what: "1.2"})

    [finding, equal] = compare.compare_versions(LABELS, [*NODES[:2], odd])

    assert (finding.what, finding.level, finding.nodes) == (f"version of {what}", level, ("n2",))
    assert "1.2 on n2" in finding.found
    assert equal.level is Level.OK


def test_equal_versions_are_one_line() -> None:
    [finding] = compare.compare_versions(LABELS, NODES)

    assert (finding.level, finding.found) == (
        Level.OK,
        "clusterrun 0.1.0, torch 2.13.0, Python 3.12.1",
    )


@pytest.mark.parametrize(
    ("offsets", "odd"),
    [
        ((0.0, 0.2, -0.3), ()),
        ((0.0, 5.0, 0.1), ("n1",)),
        ((0.0, 60.0, 60.1), ("n0",)),
    ],
)
def test_clocks(offsets: Sequence[float], odd: tuple[str, ...]) -> None:
    """If node 0's clock differs, it is named and not all others."""
    found = list(compare.compare_clocks(LABELS, offsets))

    assert tuple(faults(found).values()) == ((odd,) if odd else ())


@pytest.mark.parametrize(
    ("seen", "level"),
    [
        ((True, True, True), Level.OK),
        ((True, False, True), Level.FAILURE),
        ((True, False, False), Level.WARNING),
        ((False, False, False), Level.WARNING),
    ],
)
def test_folders(seen: Sequence[bool], level: Level) -> None:
    """Each node may have its own folder; one that only some share is a mistake."""
    assert compare.compare_folder(LABELS, "/work", seen).level is level


def test_the_slow_gpu_is_named() -> None:
    """Compared with devices of its kind."""
    usual = TorchFacts(
        products=(
            Product("CPU", 90.0),
            Product("GPU 0", 900.0),
            Product("GPU 1", 900.0),
        )
    )
    slow = TorchFacts(
        products=(
            Product("CPU", 95.0),
            Product("GPU 0", 900.0),
            Product("GPU 1", 400.0),
        )
    )
    by_node = [usual, usual, slow]

    found = list(compare.compare_products(LABELS, by_node))

    assert faults(found) == {"matrix product": ("n2",)}
    assert [each.found for each in found if each.level is not Level.OK] == [
        "n2 (GPU 1): 400 of 900 Gflop/s"
    ]


def test_a_torch_that_fails_is_named() -> None:
    """With the devices before it, compared with others' as usual."""
    well = TorchFacts(
        products=(
            Product("CPU", 90.0),
            Product("GPU 0", 900.0),
        )
    )
    bad = TorchFacts(
        products=(Product("CPU", 90.0),), fault="RuntimeError: CUDA error: out of memory"
    )

    found = list(compare.compare_products(LABELS, [well, bad, well]))

    assert faults(found) == {"matrix product": ("n1",)}
    assert "fails on n1: RuntimeError: CUDA error: out of memory" in [each.found for each in found]


@pytest.mark.parametrize(
    ("links", "odd"),
    [
        ({(0, 1): WELL, (1, 2): WELL, (2, 0): WELL}, []),
        ({(0, 1): SLOW, (1, 2): SLOW, (2, 0): WELL}, [("n1",)]),
        ({(0, 1): WELL, (1, 2): SLOW, (2, 0): WELL}, [("n1", "n2")]),
        ({(0, 1): SLOW}, []),
    ],
)
def test_links(links: Mapping[tuple[int, int], float], odd: list[tuple[str, ...]]) -> None:
    """A node whose links are all slow is named once; of two nodes none is slower than the other."""
    found = list(compare.compare_links(LABELS, links))

    assert [each.nodes for each in found if each.level is not Level.OK] == odd


@pytest.mark.parametrize("size", [2, 3, 4, 5, 16, 17])
def test_a_ring_is_measured_in_rounds(size: int) -> None:
    """Each link once, no node twice in a round."""
    rounds = ring_rounds(size)

    links = [link for each in rounds for link in each]
    assert len(set(links)) == len(links) == (1 if size == 2 else size)
    for each in rounds:
        members = [rank for link in each for rank in link]
        assert len(set(members)) == len(members)


def test_what_is_well_everywhere_is_one_line() -> None:
    """What is not is one for each value, with its nodes."""
    well = Finding(Level.OK, "open files", "1024")
    low = Finding(Level.FAILURE, "open files", "256", "raise it")

    found = list(merged(LABELS, [[well], [low], [low]]))

    assert [(each.found, each.nodes) for each in found] == [
        ("1 node: 1024", ()),
        ("n1, n2: 256", ("n1", "n2")),
    ]


def test_two_hosts_of_one_name() -> None:
    """Are told apart by their node rank."""
    nodes: list[NodeFacts] = [
        replace(NODES[0], host="box"),
        replace(NODES[1], host="box"),
        NODES[2],
    ]

    assert labels_of(nodes) == ("box/0", "box/1", "n2")


NCCL = """\
NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with \
NCCL_DEBUG=WARN for details), NCCL version 2.28.9
{kind}: This usually reflects ...
Last error:
{reason}
"""
"""What torch raises if NCCL fails."""

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
def test_why_nodes_do_not_add_up(fault: str, reason: str, *, is_of_network: bool) -> None:
    """NCCL's reason is in its last line; another interface is no advice where a GPU is at fault."""
    found = compare.describe_failed_all_reduce("nccl", LABELS, ["", fault, fault])

    assert (found.what, found.level, found.nodes) == (
        "all_reduce (nccl)",
        Level.FAILURE,
        ("n1", "n2"),
    )
    assert found.found == f"fails on n1, n2: {reason}"
    assert ("SOCKET_IFNAME" in found.advice) == is_of_network
    assert found.advice.endswith("NCCL_DEBUG=INFO shows what NCCL chooses")
