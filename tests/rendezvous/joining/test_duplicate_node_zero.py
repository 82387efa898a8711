"""Node 0 looks whether its name is its own."""

import socket
import time
from collections.abc import Iterator

import pytest
from clusterrun.rendezvous.joining.duplicate_node_zero import DuplicateNodeZeroCheck
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.names.addresses import Address

from tests.rendezvous.nodes import Said, free_port, hello, hooks, rendezvous_settings, take_turns

HERE, THERE = (Address(socket.AF_INET, f"192.0.2.{number}", 0) for number in (1, 2))
INTERFACES = {"eth0": (HERE.text,)}


@pytest.fixture
def said() -> Said:
    """Return the lines that are printed."""
    return Said()


@pytest.fixture
def outlooks(said: Said) -> Iterator["Outlooks"]:
    """Return lookouts that are closed at the end."""
    made = Outlooks(said)
    yield made
    for lookout in made.all:
        lookout.close()


class Outlooks:
    """Lookouts of a node 0 whose name has certain addresses."""

    def __init__(self, said: Said) -> None:
        self.all: list[DuplicateNodeZeroCheck] = []
        self._said = said

    def to(self, *addresses: Address) -> DuplicateNodeZeroCheck:
        """Return one that has looked the name up."""
        where = hooks(self._said, interfaces=INTERFACES, resolve=lambda _: addresses)
        settings = rendezvous_settings(free_port(), host="head")
        lookout = DuplicateNodeZeroCheck(
            JoiningNode(settings, hello(0, rank=0), b"", where), time.monotonic()
        )
        self.all.append(lookout)
        take_turns(lambda: lookout._lookup is None, lookout)  # noqa: SLF001 - to be sure
        return lookout


def test_a_name_of_ours_is_what_workers_are_told(outlooks: Outlooks) -> None:
    """As the user has given it."""
    lookout = outlooks.to(HERE)

    assert lookout.master_addr == "head"
    assert lookout.due == float("inf")


def test_of_several_addresses_workers_are_told_ours(outlooks: Outlooks) -> None:
    """The others may be dead, or another machine's."""
    assert outlooks.to(THERE, HERE).master_addr == HERE.text


def test_a_loopback_address_is_ours(outlooks: Outlooks) -> None:
    """Debian gives the host's own name 127.0.1.1."""
    lookout = outlooks.to(Address(socket.AF_INET, "127.0.1.1", 0))

    assert (lookout.master_addr, lookout.due) == ("head", float("inf"))


def test_a_name_that_is_not_ours_is_said_if_nothing_comes_of_it(
    outlooks: Outlooks, said: Said
) -> None:
    """A service's address is none of ours either, and leads to us."""
    lookout = outlooks.to(THERE)
    at_once = list(said)
    for _ in range(3):
        lookout.turn(time.monotonic() + 5.0)

    assert at_once == []
    assert said == [
        "n0 is node 0, but head (--master-addr) resolves to 192.0.2.2, which is none of its addresses",
    ]
    assert lookout.failure is None
