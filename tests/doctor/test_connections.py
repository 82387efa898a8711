"""Which nodes reach each other, from what each of them has tried."""

from collections.abc import Sequence

import pytest
from clusterrun.clients.doctor import compare
from clusterrun.clients.doctor.compare import ConnectionAttempt
from clusterrun.clients.doctor.node_program import MAX_IN_PAIRS, peers_of
from clusterrun.clients.doctor.this_machine import Finding, Level
from msgspec.structs import replace

from tests.doctor.nodes import LABELS, NODES

Calls = list[list[ConnectionAttempt]]


def all_well() -> Calls:
    """Return that each node reaches each other by both addresses."""
    return [
        [
            ConnectionAttempt(to, address, "")
            for to in range(3)
            if to != rank
            for address in NODES[to].addresses
        ]
        for rank in range(3)
    ]


def broken(callers: Sequence[int], to: int, address: str) -> Calls:
    """Return the same, but for callers that do not reach an address."""
    return [
        [
            replace(call, fault="timed out")
            if rank in callers and (call.to, call.address) == (to, address)
            else call
            for call in made
        ]
        for rank, made in enumerate(all_well())
    ]


def bad(found: Sequence[Finding]) -> list[tuple[Level, str]]:
    return [(each.level, each.found) for each in found if each.level is not Level.OK]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (all_well(), []),
        (
            broken([1], 2, "10.0.0.2"),
            [(Level.FAILURE, "n1 can't reach n2 at 10.0.0.2: timed out; n2 reaches it")],
        ),
        (
            broken([0, 1], 2, "10.0.0.2"),
            [(Level.FAILURE, "no node reaches n2 at 10.0.0.2: timed out")],
        ),
        (
            broken([0, 1], 2, "10.1.0.2"),
            [(Level.WARNING, "no node reaches n2 at 10.1.0.2: timed out")],
        ),
    ],
)
def test_addresses(calls: Calls, expected: list[tuple[Level, str]]) -> None:
    """A job needs those on the way to node 0; others are a warning."""
    found = list(compare.check_calls(LABELS, NODES, calls))

    assert bad(found) == expected
    assert all(each.advice for each in found if each.level is not Level.OK)


def test_an_interface_that_is_chosen_is_needed() -> None:
    """By a variable: its address is then the one that libraries use."""
    nodes = [*NODES[:2], replace(NODES[2], chosen={"NCCL_SOCKET_IFNAME": ("eth1",)})]

    [finding] = compare.check_calls(LABELS, nodes, broken([0, 1], 2, "10.1.0.2"))

    assert finding.level is Level.FAILURE


def test_an_interface_without_an_address() -> None:
    """Such as loopback, where the nodes meet by another."""
    nodes = [NODES[0], replace(NODES[1], chosen={"GLOO_SOCKET_IFNAME": ("lo",)}), NODES[2]]

    found = list(compare.check_interfaces(LABELS, nodes))

    assert bad(found) == [(Level.FAILURE, "n1: lo has no address that other nodes know")]
    assert found[-1].found == "eth0 on all nodes"


@pytest.mark.parametrize(
    ("addresses", "is_well"),
    [((), True), (("127.0.1.1",), True), (("10.0.0.2",), True), (("10.9.9.9",), False)],
)
def test_names(addresses: tuple[str, ...], *, is_well: bool) -> None:
    """A name may be unknown; it must not lead to another machine."""
    found = list(compare.check_names(LABELS, NODES, [{}, {"n2": addresses}, {}]))

    assert (bad(found) == []) == is_well


def test_large_jobs_call_in_a_ring() -> None:
    """Not each node each other."""
    assert peers_of(0, 3) == [1, 2]
    assert peers_of(0, MAX_IN_PAIRS + 1) == [1, MAX_IN_PAIRS]
