"""Node 0 checks whether its address belongs to its machine."""

import socket
import time
from collections.abc import Iterator

import pytest
from free_ports import free_port

from tests.rendezvous.door import (
    NEVER,
    Address,
    DuplicateNodeZeroCheck,
    JoiningNode,
)
from tests.rendezvous.nodes import Notices, hello, hooks, job_terms, take_turns

HERE, THERE = (Address(socket.AF_INET, f"192.0.2.{number}", 0) for number in (1, 2))
INTERFACES = {"eth0": (HERE.text,)}


@pytest.fixture
def checks(notices: Notices) -> Iterator["Checks"]:
    """Return checks that are closed at the end."""
    made = Checks(notices)
    yield made
    for check in made.all:
        check.close()


class Checks:
    """Checks of a node 0 whose name has given addresses."""

    def __init__(self, notices: Notices) -> None:
        self.all: list[DuplicateNodeZeroCheck] = []
        self._said = notices

    def to(self, *addresses: Address) -> DuplicateNodeZeroCheck:
        """Return a check that has looked the name up."""
        where = hooks(self._said, interfaces=INTERFACES, resolve=lambda _: addresses)
        terms = job_terms(free_port(), host="head")
        check = DuplicateNodeZeroCheck(
            JoiningNode(terms, hello(0, rank=0), b"", where), time.monotonic()
        )
        self.all.append(check)
        take_turns(lambda: check._lookup is None, check)  # noqa: SLF001 - to be sure
        return check


def test_an_own_name_is_master_addr(checks: Checks) -> None:
    """As the user has given it."""
    check = checks.to(HERE)

    assert check.master_addr == "head"
    assert check.due == NEVER


def test_of_several_addresses_the_own_one_is_master_addr(checks: Checks) -> None:
    """The others may be dead, or another machine's."""
    assert checks.to(THERE, HERE).master_addr == HERE.text


def test_a_loopback_address_is_own(checks: Checks) -> None:
    """Debian gives the host's own name 127.0.1.1."""
    check = checks.to(Address(socket.AF_INET, "127.0.1.1", 0))

    assert (check.master_addr, check.due) == ("head", NEVER)


def test_a_foreign_name_is_a_notice_after_some_seconds(checks: Checks, notices: Notices) -> None:
    """Not at once: a service's address belongs to no machine either, and leads here."""
    check = checks.to(THERE)
    at_once = list(notices)
    for _ in range(3):
        check.turn(time.monotonic() + 5.0)

    assert at_once == []
    assert notices == [
        "n0 is node 0, but head (--master-addr) resolves to 192.0.2.2, which is none of its addresses",
    ]
    assert check.failure is None
