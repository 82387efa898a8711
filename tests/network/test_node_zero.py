"""Which node is node 0: without ranks the owner of its address, and never two of them."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from clusterrun.errors import RendezvousError
from clusterrun.loop import NEVER, Loop
from clusterrun.network.addresses import Address, Resolve, all_addresses
from clusterrun.network.duplicate_check import DuplicateCheck
from clusterrun.network.joining_node import JoiningNode
from clusterrun.policy import events
from free_ports import free_port

from tests.network.nodes import (
    PATIENCE,
    Node,
    Notices,
    job_settings,
    join_context,
    listens,
    ranked_hello,
    run_until,
)

HERE, THERE = (Address(socket.AF_INET, f"192.0.2.{number}", 0) for number in (1, 2))
INTERFACES = {"eth0": (HERE.text, "fd00::1")}


# A node without a rank.


def rankless(stack: ExitStack, port: int, host: str, resolve: Resolve = all_addresses) -> Node:
    """Return a node that looks for node 0 at ``host``."""
    where = join_context(interfaces=INTERFACES, resolve=resolve)
    made = Node(job_settings(port, host=host), ranked_hello(1, rank=None), where=where)
    stack.callback(made.leave)
    return made


@pytest.mark.parametrize(
    ("host", "own"),
    [
        (HERE.text, True),
        ("fd00::1", True),
        (THERE.text, False),
        ("127.0.0.1", True),
        ("127.0.1.1", True),
    ],
)
def test_owner_of_the_address_is_node_zero(stack: ExitStack, host: str, *, own: bool) -> None:
    """Its network interfaces decide."""
    node = rankless(stack, port := free_port(), host)

    node.run_for(0.01)

    assert listens(port, host if host.startswith("127") else "127.0.0.1") is own


def test_one_own_address_is_enough(stack: ExitStack) -> None:
    """A name may stand for all interfaces of a machine."""
    node = rankless(stack, port := free_port(), "head", lambda _: (THERE, HERE))

    run_until(lambda: listens(port), node)


@pytest.mark.parametrize("rank", [None, 1])
def test_unknown_name_is_a_notice_and_then_an_error(
    stack: ExitStack, notices: Notices, tmp_path: Path, rank: int | None
) -> None:
    """At the timeout."""
    asked = tmp_path / "asked"
    asked.touch()

    def resolve(_: str) -> tuple[Address, ...]:
        # In a process of its own.
        with asked.open("a") as file:
            file.write("x")
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    where = join_context(notices, interfaces=INTERFACES, resolve=resolve)
    settings = job_settings(free_port(), host="head", rdzv_timeout=12.0)
    node = Node(settings, ranked_hello(1, rank=rank), where=where)
    stack.callback(node.leave)
    # The second time only after the first answer.
    run_until(lambda: asked.stat().st_size > 1, node)
    node.ahead = 5.0
    node.run_for(0.01)
    node.ahead = 12.0
    failure = node.join_error()

    [notice] = notices
    why = "name or service not known"
    assert notice.startswith(f"head (--master-addr) does not resolve yet: {why} (")
    assert failure.message == (
        f"head (--master-addr) did not resolve on this node within 12 s: {why}"
    )


def test_ports_of_other_jobs_are_an_error(stack: ExitStack) -> None:
    """Even if their nodes 0 answer, because they refuse this one."""
    ports = [free_port(), free_port()]
    others = [Node(job_settings(port), ranked_hello(0, run_id="other")) for port in ports]
    for each in others:
        stack.callback(each.leave)
    settings = job_settings(ports, rdzv_timeout=600.0)
    node = Node(settings, ranked_hello(1, rank=None, run_id="mine"), where=join_context())
    stack.callback(node.leave)
    before = time.monotonic()

    with pytest.raises(RendezvousError, match=f"port {ports[0]} .* is in use on n1 by"):
        run_until(lambda: False, node, *others)

    assert 1.0 < time.monotonic() - before < PATIENCE / 2


# Whether its address belongs to its machine.


class Checked:
    """The check of a node 0 whose name has given addresses, in a loop."""

    def __init__(self, notices: Notices, addresses: tuple[Address, ...]) -> None:
        self.ahead = 0.0
        self.loop = Loop[events.Event](lambda: time.monotonic() + self.ahead)
        where = join_context(notices, interfaces=INTERFACES, resolve=lambda _: addresses)
        settings = job_settings(free_port(), host="head")
        node = JoiningNode(settings, ranked_hello(0), b"", where)
        self.check = DuplicateCheck(node, self.loop, self.events)
        self.loop.add_timer(self)

    @property
    def due(self) -> float:
        return self.check.due

    def events(self, now: float) -> Iterable[events.Event]:
        self.check.turn(now)
        return ()

    def run_until(self, until: Callable[[], bool]) -> None:
        """Give it turns until it has come so far."""
        deadline = time.monotonic() + PATIENCE
        while not until() and time.monotonic() < deadline:
            self.loop.turn(self.loop.clock() + 0.1)
        assert until()

    def close(self) -> None:
        self.check.close()
        self.loop.close()


Check = Callable[..., Checked]


@pytest.fixture
def checked(stack: ExitStack, notices: Notices) -> Iterator[Check]:
    """Return what begins a check of addresses; it is closed at the end."""

    def begun(*addresses: Address) -> Checked:
        made = Checked(notices, addresses)
        stack.callback(made.close)
        return made

    return begun  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("addresses", "master_addr"),
    [
        pytest.param((HERE,), "head", id="its own, as the user has given it"),
        pytest.param((THERE, HERE), HERE.text, id="others may be dead, or another machine's"),
        pytest.param(
            (Address(socket.AF_INET, "127.0.1.1", 0),),
            "head",
            id="Debian's for the host's own name",
        ),
    ],
)
def test_own_address_ends_the_duplicate_check(
    checked: Check, notices: Notices, addresses: tuple[Address, ...], master_addr: str
) -> None:
    """It sets MASTER_ADDR."""
    made = checked(*addresses)

    made.run_until(lambda: made.due == NEVER)

    assert made.check.master_addr == master_addr
    assert notices == []


def test_address_of_no_interface_is_a_late_notice(checked: Check, notices: Notices) -> None:
    """Not at once: the address of a Kubernetes service is on no machine either, and reaches this node."""
    made = checked(THERE)
    made.run_until(lambda: made.due < made.loop.clock() + 5.0)
    at_once = list(notices)
    made.ahead = 5.0
    made.run_until(lambda: bool(notices))
    made.ahead = 50.0
    made.loop.turn(made.loop.clock())

    assert at_once == []
    assert notices == [
        "n0 is node 0, but head (--master-addr) resolves to 192.0.2.2, which is none of its addresses",
    ]
    assert made.check.failure is None
