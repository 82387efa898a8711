"""Findings about connections between nodes, from each node's attempts."""

from collections.abc import Sequence

import pytest
from clusterrun.clients.doctor import compare
from clusterrun.clients.doctor.compare import ConnectionAttempt
from clusterrun.clients.doctor.node_program import MAX_ALL_TO_ALL_NODES, peers_of
from clusterrun.clients.doctor.this_machine import Finding, Level
from msgspec.structs import replace

from tests.doctor.nodes import LABELS, NODES

Attempts = list[list[ConnectionAttempt]]


def all_connected() -> Attempts:
    """Return attempts in which each node reaches both addresses of each other node."""
    return [
        [
            ConnectionAttempt(to, address, "")
            for to in range(3)
            if to != rank
            for address in NODES[to].addresses
        ]
        for rank in range(3)
    ]


def with_failures(callers: Sequence[int], to: int, address: str) -> Attempts:
    """Return attempts in which the callers do not reach one address."""
    return [
        [
            replace(call, fault="timed out")
            if rank in callers and (call.to, call.address) == (to, address)
            else call
            for call in made
        ]
        for rank, made in enumerate(all_connected())
    ]


def problems(found: Sequence[Finding]) -> list[tuple[Level, str]]:
    return [(each.level, each.found) for each in found if each.level is not Level.OK]


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        (all_connected(), []),
        (
            with_failures([1], 2, "10.0.0.2"),
            [(Level.FAILURE, "n1 can't reach n2 at 10.0.0.2: timed out; n2 reaches it")],
        ),
        (
            with_failures([0, 1], 2, "10.0.0.2"),
            [(Level.FAILURE, "no node reaches n2 at 10.0.0.2: timed out")],
        ),
        (
            with_failures([0, 1], 2, "10.1.0.2"),
            [(Level.WARNING, "no node reaches n2 at 10.1.0.2: timed out")],
        ),
    ],
)
def test_unreachable_addresses(attempts: Attempts, expected: list[tuple[Level, str]]) -> None:
    """Jobs use the addresses towards node 0; for others there is a warning."""
    found = list(compare.check_connections(LABELS, NODES, attempts))

    assert problems(found) == expected
    assert all(each.advice for each in found if each.level is not Level.OK)


def test_unreachable_address_of_chosen_interface_fails() -> None:
    nodes = [*NODES[:2], replace(NODES[2], chosen={"NCCL_SOCKET_IFNAME": ("eth1",)})]

    [finding] = compare.check_connections(LABELS, nodes, with_failures([0, 1], 2, "10.1.0.2"))

    assert finding.level is Level.FAILURE


def test_chosen_interface_without_reachable_address_fails() -> None:
    nodes = [NODES[0], replace(NODES[1], chosen={"GLOO_SOCKET_IFNAME": ("lo",)}), NODES[2]]

    found = list(compare.check_interfaces(LABELS, nodes))

    assert problems(found) == [(Level.FAILURE, "n1: lo has no address that other nodes know")]
    assert found[-1].found == "eth0 on all nodes"


@pytest.mark.parametrize(
    ("addresses", "is_ok"),
    [((), True), (("127.0.1.1",), True), (("10.0.0.2",), True), (("10.9.9.9",), False)],
)
def test_host_name_of_another_node(addresses: tuple[str, ...], *, is_ok: bool) -> None:
    """A name may be unknown, but must not resolve to a different machine."""
    found = list(compare.check_names(LABELS, NODES, [{}, {"n2": addresses}, {}]))

    assert (problems(found) == []) == is_ok


def test_peers_are_all_nodes_or_ring_neighbours() -> None:
    assert peers_of(0, 3) == [1, 2]
    assert peers_of(0, MAX_ALL_TO_ALL_NODES + 1) == [1, MAX_ALL_TO_ALL_NODES]
