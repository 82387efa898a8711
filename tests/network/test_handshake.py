"""The handshake: members and the coordinator of one job accept each other and nothing else."""

import socket
import struct
from dataclasses import dataclass, field

import pytest
from clusterrun.network.addresses import is_own
from clusterrun.network.handshake import (
    MAGIC,
    NO_ADDRESS,
    VERSION,
    Fault,
    FrameMacs,
    Handshake,
    HandshakeFailed,
    Step,
    coordinator_handshake,
    member_handshake,
    packed_address,
)
from hypothesis import given
from hypothesis import strategies as st


@dataclass
class Speaker:
    """One side of a handshake, with the received bytes that it has not processed yet."""

    steps: Handshake
    received: bytes = b""
    fault: Fault | None = None
    why: str = ""
    seals: FrameMacs | None = None
    done: bool = False
    to_send: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._note(next(self.steps))

    def receive(self, data: bytes) -> None:
        """Take what the other side says as far as it goes."""
        self.received += data
        while not self.done and len(self.received) >= self.step.size:
            taken, self.received = (
                self.received[: self.step.size],
                self.received[self.step.size :],
            )
            try:
                self._note(self.steps.send(taken))
            except StopIteration as stop:
                self.done, self.seals = True, stop.value
            except HandshakeFailed as failure:
                self.done, self.fault = True, failure.fault
                self.why = str(failure)

    def _note(self, step: Step) -> None:
        self.step = step
        if step.send:
            self.to_send.append(step.send)


def shake_hands(of_member: bytes, of_coordinator: bytes) -> tuple[Speaker, Speaker]:
    """Let a member and a coordinator exchange bytes until neither has more to send."""
    member = Speaker(member_handshake(of_member))
    coordinator = Speaker(coordinator_handshake(of_coordinator))
    return speak(member, coordinator)


def speak(member: Speaker, coordinator: Speaker) -> tuple[Speaker, Speaker]:
    while member.to_send or coordinator.to_send:
        to_coordinator, member.to_send = member.to_send, []
        coordinator.receive(b"".join(to_coordinator))
        to_member, coordinator.to_send = coordinator.to_send, []
        member.receive(b"".join(to_member))
    return member, coordinator


@pytest.mark.parametrize("token", [b"", b"secret", b"\x00", b"x" * 10_000])
def test_equal_tokens_or_none_succeed(token: bytes) -> None:
    """No bytes are left over."""
    member, coordinator = shake_hands(token, token)

    assert (member.done, member.fault, member.received) == (True, None, b"")
    assert (coordinator.done, coordinator.fault, coordinator.received) == (True, None, b"")
    assert (member.seals is None, coordinator.seals is None) == (not token, not token)


@pytest.mark.parametrize(
    ("tokens", "of_member", "of_coordinator"),
    [
        ((b"one", b"other"), Fault.WRONG_TOKEN, Fault.WRONG_TOKEN),
        ((b"one", b""), Fault.HAS_NO_TOKEN, Fault.HAS_A_TOKEN),
        ((b"", b"other"), Fault.HAS_A_TOKEN, Fault.HAS_NO_TOKEN),
    ],
)
def test_disagreement_is_known_to_both_sides(
    tokens: tuple[bytes, bytes], of_member: Fault, of_coordinator: Fault
) -> None:
    member, coordinator = shake_hands(*tokens)

    assert (member.fault, coordinator.fault) == (of_member, of_coordinator)


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_different_tokens_fail(one: bytes, other: bytes) -> None:
    member, coordinator = shake_hands(one, other)

    assert (coordinator.fault is None) == (member.fault is None) == (one == other)


def test_token_is_never_sent() -> None:
    """Nor is anything that is the same the next time."""
    proofs = []
    for nonces in ((b"1" * 32, b"2" * 32), (b"3" * 32, b"4" * 32)):
        member = Speaker(member_handshake(b"secret", nonce=nonces[0]))
        coordinator = Speaker(coordinator_handshake(b"secret", nonce=nonces[1]))
        coordinator.receive(member.to_send.pop())
        member.receive(coordinator.to_send.pop())
        proofs.append(member.to_send.pop())

    assert proofs[0] != proofs[1]
    assert all(b"secret" not in proof for proof in proofs)


def test_coordinator_without_proof_is_refused() -> None:
    """The member's own proof does not count either."""
    member = Speaker(member_handshake(b"secret", nonce=b"m" * 32))
    member.to_send.clear()
    member.receive(struct.pack(">12sHcB32s", MAGIC, VERSION, b"C", 1, b"c" * 32) + NO_ADDRESS)
    (answer,) = member.to_send

    member.receive(b"\x01" + answer[len(NO_ADDRESS) :])

    assert member.fault is Fault.WRONG_TOKEN


def test_different_version_is_reported_on_both_sides() -> None:
    """The opening has the same format in all versions, and node 0 answers it."""
    newer = struct.pack(">12sHcB32s", MAGIC, VERSION + 1, b"M", 0, b"m" * 32)
    coordinator = Speaker(coordinator_handshake(b""))

    coordinator.receive(newer)
    (answer,) = coordinator.to_send

    assert (coordinator.fault, len(answer)) == (Fault.OTHER_VERSION, 48)
    assert answer.startswith(MAGIC + VERSION.to_bytes(2, "big"))


def test_failure_has_the_version_of_the_peer() -> None:
    steps = member_handshake(b"")
    next(steps)

    with pytest.raises(HandshakeFailed) as caught:
        steps.send(struct.pack(">12sHcB32s", MAGIC, 7, b"C", 0, b"c" * 32))

    assert caught.value.version == 7


def test_connection_to_itself_is_not_clusterrun() -> None:
    """The kernel connects a socket to itself if the ephemeral port is the dialed one."""
    member = Speaker(member_handshake(b""))

    member.receive(member.to_send[0])

    assert member.fault is Fault.NOT_CLUSTERRUN


def test_coordinator_sends_nothing_before_the_opening() -> None:
    """A port scanner receives nothing."""
    coordinator = Speaker(coordinator_handshake(b""))

    assert coordinator.to_send == []
    assert coordinator.step.prefix == MAGIC


def test_magic_is_not_a_command_of_torchs_store() -> None:
    """TCPStore first reads the number of a query; the magic bytes are far from all of them."""
    assert MAGIC[0] > 0x80
    assert socket.ntohl(int.from_bytes(MAGIC[:4], "little")) > 1 << 20


ETH0 = {"eth0": ("10.0.0.1",)}
PORT, OWN_PORT = ("10.0.0.1", 29500), ("10.0.0.1", 29501)
DIALED, OWN_END = packed_address(PORT), packed_address((*OWN_PORT, 0, 0))


@pytest.mark.parametrize(
    ("dialed", "own_end", "interfaces", "relayed_at"),
    [
        (PORT, OWN_PORT, ETH0, "10.0.0.1:29500"),
        (("10.0.0.2", 29501), OWN_PORT, {**ETH0, "ib0": ("10.0.0.2",)}, "10.0.0.2:29501"),
        (("127.0.0.1", 29501), OWN_PORT, {}, "127.0.0.1:29501"),
        (("fe80::1%eth1", 29500, 0, 3), OWN_PORT, {"eth0": ("fe80::1",)}, "[fe80::1]:29500"),
        (("10.9.0.1", 30500), PORT, ETH0, None),
        (("10.96.7.7", 29500), PORT, {"kube-ipvs0": ("10.96.7.7",)}, None),
        (PORT, ("::ffff:10.0.0.1", 29500, 0, 0), ETH0, None),
        (("fe80::1", 29500, 0, 3), ("fe80::1%eth0", 29500, 0, 2), {"eth0": ("fe80::1",)}, None),
    ],
    ids=[
        *("another port", "another address", "loopback", "link-local"),
        *("NAT", "Kubernetes service", "IPv4-mapped", "different scope"),
    ],
)
@pytest.mark.parametrize("token", [b"secret", b""])
def test_relay_on_node_zeros_host_is_detected(
    token: bytes,
    dialed: tuple[object, ...],
    own_end: tuple[object, ...],
    interfaces: dict[str, tuple[str, ...]],
    relayed_at: str | None,
) -> None:
    """The member dialed an address of that host, and node 0 accepted at a different one.

    Without a token a relay is not refused: it could also change the addresses.
    """
    member, coordinator = speak(
        Speaker(member_handshake(token, packed_address(dialed))),
        Speaker(
            coordinator_handshake(
                token, packed_address(own_end), lambda each: is_own(each, interfaces)
            )
        ),
    )

    fault = Fault.RELAYED if relayed_at and token else None
    assert (member.done, member.fault) == (True, fault)
    assert (coordinator.done, coordinator.fault) == (True, fault)
    how = f"connected to {relayed_at}, and another program on this host forwarded the connection"
    assert coordinator.why == (how if fault else "")


@pytest.mark.parametrize("of", ["member", "coordinator"])
def test_relay_that_changes_an_address_is_refused(of: str) -> None:
    """Both addresses are in the proofs."""
    member = Speaker(member_handshake(b"secret", DIALED))
    coordinator = Speaker(coordinator_handshake(b"secret", OWN_END, lambda _: True))
    coordinator.receive(member.to_send.pop())
    to_member = coordinator.to_send.pop()
    if of == "coordinator":
        to_member = to_member[: -len(DIALED)] + DIALED
    member.receive(to_member)
    to_coordinator = member.to_send.pop()
    if of == "member":
        to_coordinator = OWN_END + to_coordinator[len(OWN_END) :]
    coordinator.receive(to_coordinator)
    member.receive(coordinator.to_send.pop())

    assert (member.fault, coordinator.fault) == (Fault.WRONG_TOKEN, Fault.WRONG_TOKEN)


def test_own_addresses_are_only_read_if_addresses_differ() -> None:
    """And never for an unauthenticated connection."""
    asked: list[str] = []

    def is_own(address: str) -> bool:
        asked.append(address)
        return False

    for dialed, token in ((OWN_END, b"secret"), (DIALED, b"other")):
        speak(
            Speaker(member_handshake(token, dialed)),
            Speaker(coordinator_handshake(b"secret", OWN_END, is_own)),
        )
    assert asked == []
    speak(
        Speaker(member_handshake(b"secret", DIALED)),
        Speaker(coordinator_handshake(b"secret", OWN_END, is_own)),
    )

    assert asked == ["10.0.0.1"]


def test_each_connection_and_direction_has_its_own_keys() -> None:
    """The MACs of equal frames differ."""
    macs = []
    for _ in range(2):
        for speaker in shake_hands(b"secret", b"secret"):
            assert speaker.seals is not None
            macs.append(speaker.seals.sent.mac(b"body"))
            macs.append(speaker.seals.sent.mac(b"body"))

    assert len(set(macs)) == 8
    assert {len(mac) for mac in macs} == {16}
