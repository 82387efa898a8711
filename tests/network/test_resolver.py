"""A child process resolves names, with retries and a time limit."""

import fcntl
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, cast

import psutil
import pytest
from clusterrun.loop import NEVER, Loop
from clusterrun.network.addresses import Address
from clusterrun.network.resolver import SECONDS_FOR_AN_ANSWER, Lookup, resolves_for_others

from tests.network.nodes import PATIENCE

ADDRESSES = (Address(socket.AF_INET, "10.0.0.1", 0), Address(socket.AF_INET6, "fe80::1", 3))


OTHERS: list[int] = []


@pytest.fixture
def loop() -> Iterator[Loop[None]]:
    """Return the loop in which a lookup waits."""
    with closing(Loop[None](time.monotonic)) as made:
        yield made


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Ignore the children of other tests' fixtures."""
    OTHERS[:] = [child.pid for child in psutil.Process().children()]
    yield
    OTHERS.clear()


def children() -> list[int]:
    """Return the processes that a test has started and not reaped."""
    return [child.pid for child in psutil.Process().children() if child.pid not in OTHERS]


def nothing(_now: float) -> tuple[()]:
    """Be called: the tests give each lookup its turn."""
    return ()


def answered(lookup: Lookup, loop: Loop[None]) -> Lookup:
    """Wait until the lookup has addresses or an error."""
    deadline = time.monotonic() + PATIENCE
    while not (lookup.addresses or lookup.error):
        assert time.monotonic() < deadline
        loop.turn(time.monotonic() + 1.0)
        lookup.turn(time.monotonic())
    return lookup


def test_numeric_address_starts_no_child(loop: Loop[None]) -> None:
    before = children()

    lookup = Lookup("10.0.0.1", loop, nothing, 0.0)

    assert [address.text for address in lookup.addresses] == ["10.0.0.1"]
    assert children() == before


def test_localhost_is_resolved(loop: Loop[None]) -> None:
    lookup = answered(Lookup("localhost", loop, nothing, time.monotonic()), loop)

    assert all(address.is_loopback for address in lookup.addresses)


@pytest.mark.parametrize(
    ("own_name", "resolves"), [("10.0.0.5", True), ("10.9.9.9", False), ("127.0.1.1", False)]
)
def test_own_name_may_resolve_to_unreachable_address(own_name: str, *, resolves: bool) -> None:
    """In a pod with hostNetwork, or behind a VPN: libraries could not listen there."""
    interfaces = {"lo": ("127.0.0.1", "127.0.1.1"), "eth0": ("10.0.0.5",)}

    assert resolves_for_others(own_name, time.monotonic, interfaces) is resolves


def test_all_addresses_are_returned_in_order(loop: Loop[None]) -> None:
    """With their scopes."""
    lookup = answered(Lookup("n0", loop, nothing, time.monotonic(), lambda _: ADDRESSES), loop)

    assert lookup.addresses == ADDRESSES
    assert lookup.due == NEVER


def refuse(_: str) -> tuple[Address, ...]:
    """Fail as the resolver does for an unknown name."""
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_unknown_name_is_looked_up_again(loop: Loop[None]) -> None:
    """The name of a pod exists only some time after the pod has started."""
    lookup = answered(Lookup("n0", loop, nothing, time.monotonic(), refuse), loop)
    first = lookup.due
    lookup.turn(first)
    asking = children()
    lookup.close()

    assert lookup.error == "name or service not known"
    assert len(asking) == 1
    assert children() == []


def test_first_success_ends_the_lookups(loop: Loop[None], tmp_path: Path) -> None:
    known = tmp_path / "known"

    def resolve(host: str) -> tuple[Address, ...]:
        return ADDRESSES if known.exists() else refuse(host)

    lookup = answered(Lookup("n0", loop, nothing, time.monotonic(), resolve), loop)
    known.touch()
    lookup.error = ""
    lookup.turn(lookup.due)
    answered(lookup, loop)

    assert lookup.addresses == ADDRESSES


def keep_silent(_: str) -> tuple[Address, ...]:
    time.sleep(PATIENCE)
    return ()


def test_silent_name_server_times_out(loop: Loop[None]) -> None:
    """The child is killed after the limit."""
    lookup = Lookup("n0", loop, nothing, 0.0, keep_silent)
    asking = children()
    lookup.turn(SECONDS_FOR_AN_ANSWER - 1.0)
    waiting = children()
    lookup.turn(float(SECONDS_FOR_AN_ANSWER))

    assert len(asking) == 1
    assert waiting == asking
    assert lookup.error == "no answer within 15 s"
    assert children() == []


HOLD = (
    "import ctypes, signal, sys\n"
    "signal.alarm(10)\n"
    "seized = ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), None, None)\n"  # PTRACE_SEIZE
    "print(seized, flush=True)\n"
    "sys.stdin.read()"
)


def test_close_does_not_wait_for_an_unkillable_child(loop: Loop[None]) -> None:
    """A debugger stops the child, as state D would."""
    lookup = Lookup("n0", loop, nothing, 0.0, keep_silent)
    (pid,) = children()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as debugger:
        seized = cast("IO[bytes]", debugger.stdout).readline() == b"0\n"
        begun = time.monotonic()
        lookup.close()
        spent = time.monotonic() - begun
        left = pid in children()
        debugger.communicate(timeout=PATIENCE)
    if not seized:
        pytest.skip("this system does not let us hold a process")

    assert left
    assert spent < PATIENCE
    os.waitpid(pid, 0)


def test_dead_child_is_an_error(loop: Loop[None]) -> None:
    def die(_: str) -> tuple[Address, ...]:
        os._exit(1)

    lookup = answered(Lookup("n0", loop, nothing, time.monotonic(), die), loop)
    lookup.close()

    assert lookup.error == "the lookup process died"


def test_child_has_no_descriptor_of_the_agent(loop: Loop[None], tmp_path: Path) -> None:
    """The agent's connections must close when the agent ends."""
    seen = tmp_path / "seen"

    def look(_: str) -> tuple[Address, ...]:
        links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]
        seen.write_text("\n".join(links))
        return ADDRESSES

    ours, theirs = socket.socketpair()
    high = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 100)
    with ours, theirs, os.fdopen(high):
        answered(Lookup("n0", loop, nothing, time.monotonic(), look), loop)

    held = seen.read_text().splitlines()
    assert [link for link in held if not link.startswith(("/dev/null", "/proc", "pipe:"))] == []
    assert len([link for link in held if link.startswith("pipe:")]) == 1


def test_second_lookup_finds_new_addresses(loop: Loop[None]) -> None:
    """A numeric address stays the same."""
    lookup = answered(Lookup("n0", loop, nothing, time.monotonic(), lambda _: ADDRESSES), loop)
    numeric = Lookup("10.0.0.1", loop, nothing, 0.0)

    lookup.look_up_again(time.monotonic())
    numeric.look_up_again(0.0)

    assert lookup.addresses == ()
    assert numeric.addresses != ()
    assert answered(lookup, loop).addresses == ADDRESSES


def test_lookup_without_free_descriptors_is_retried(loop: Loop[None]) -> None:
    """Other jobs may have reached the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    began = time.monotonic()
    try:
        lookup = Lookup("gpu-01", loop, nothing, began, lambda _: ADDRESSES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    trouble, due = lookup.error, lookup.due
    lookup.turn(due)
    lookup.error = ""

    assert trouble == "the lookup could not start: Too many open files"
    assert due < began + 1
    assert answered(lookup, loop).addresses == ADDRESSES
    assert children() == []
