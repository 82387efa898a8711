"""A node without a rank: it is node 0 if it has the address."""

import socket
import time
from contextlib import ExitStack

import pytest

from tests.rendezvous.door import (
    Address,
    JoiningNode,
    JoinTimeout,
    RanklessNode,
    Resolve,
    all_addresses,
)
from tests.rendezvous.nodes import Notices, hello, hooks, job_terms, take_turns

INTERFACES = {"eth0": ("10.0.0.1", "fd00::1")}


def rankless(
    stack: ExitStack, host: str, resolve: Resolve = all_addresses, notices: Notices | None = None
) -> RanklessNode:
    """Return a node that looks for node 0 at ``host``."""
    terms = job_terms(29500, host=host, timeout=60.0)
    agent = hooks(notices, interfaces=INTERFACES, resolve=resolve)
    now = time.monotonic()
    node = JoiningNode(terms, hello(1), b"", agent)
    made = RanklessNode(node, JoinTimeout(60.0, now), now)
    stack.callback(made.close)
    return made


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("10.0.0.1", True),
        ("fd00::1", True),
        ("10.0.0.2", False),
        ("127.0.0.1", True),
        ("127.0.1.1", True),
    ],
)
def test_the_owner_of_the_address_is_node_zero(
    stack: ExitStack,
    host: str,
    own: bool,
) -> None:
    """Its network interfaces decide."""
    node = rankless(stack, host)

    node.turn(time.monotonic())

    assert node.finished
    assert node.is_node_zero is own


def test_one_of_several_addresses_is_enough(stack: ExitStack) -> None:
    """A name may stand for all interfaces of a machine."""
    addresses = [Address(socket.AF_INET, f"10.0.0.{number}", 0) for number in (9, 1)]
    node = rankless(stack, "head", lambda _: tuple(addresses))

    take_turns(lambda: node.finished, node)

    assert node.is_node_zero is True


def test_an_unknown_name(stack: ExitStack) -> None:
    """It is a notice, and an error at the timeout."""

    def resolve(_: str) -> tuple[Address, ...]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    notices = Notices()
    node = rankless(stack, "head", resolve, notices)
    take_turns(lambda: node._lookup.error, node)  # noqa: SLF001 - to be sure
    node.turn(time.monotonic() + 5.0)
    node.turn(time.monotonic() + 60.0)

    assert notices[0].startswith(
        "head (--master-addr) does not resolve yet: name or service not known"
    )
    assert node.failure is not None
    assert node.failure.message.startswith("head (--master-addr) did not resolve on this node")
