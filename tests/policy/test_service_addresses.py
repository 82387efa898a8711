"""The address at which other nodes reach the workers of a service."""

import pytest
from clusterrun.policy import messages
from clusterrun.policy.assignment import assign_programs
from clusterrun.policy.members import Node

from tests.network.nodes import hello

INTERFACES = (("127.0.0.1", "::1"), ("fd77::3", "10.77.0.3"), ("fd88::3",))


@pytest.mark.parametrize(
    ("seen", "own", "address"),
    [
        ("10.77.0.3", "n0", "10.77.0.3"),
        # By IPv4 if it can: most servers listen at 0.0.0.0.
        ("fd77::3", "n0", "10.77.0.3"),
        ("fd88::3", "n0", "fd88::3"),
        ("fd99::3", "n0", "fd99::3"),
        # A proxy of a service mesh on the same machine; two agents on one machine.
        ("127.0.0.6", "10.77.0.2", "n1"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_address_of_node(seen: str, own: str, address: str) -> None:
    """It is the address from which it connects to node 0, or another of the same interface."""
    offers = (messages.ProgramOffer("server", (41001,), 41002),)
    first = Node(0, hello(0, programs=offers))
    other = Node(1, hello(1, programs=offers, interfaces=INTERFACES), seen)

    main, server = assign_programs([first, other], ("main", "server"), own)

    assert main.nodes == ()
    assert [each.address for each in server.nodes] == [own, address]
    assert (first.service_workers, other.service_workers) == ((0,), (1,))
