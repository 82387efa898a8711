"""The handshake: an agent and its coordinator accept each other, and no other caller."""

import socket
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rendezvous.door import (
    MAGIC,
    VERSION,
    Fault,
    HandshakeFailed,
    Step,
    Steps,
    coordinator_handshake,
    member_handshake,
)

NONCES = (b"m" * 32, b"c" * 32)


@dataclass
class Speaker:
    """One side of a handshake, with the received bytes that it has not processed yet."""

    steps: Steps
    received: bytes = b""
    fault: Fault | None = None
    done: bool = False
    to_send: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._note(next(self.steps))

    def receive(self, data: bytes) -> None:
        """Take what the other side says as far as it goes."""
        self.received += data
        while not self.done and len(self.received) >= self.step.expect:
            taken, self.received = (
                self.received[: self.step.expect],
                self.received[self.step.expect :],
            )
            try:
                self._note(self.steps.send(taken))
            except StopIteration:
                self.done = True
            except HandshakeFailed as failure:
                self.done, self.fault = True, failure.fault

    def _note(self, step: Step) -> None:
        self.step = step
        if step.send:
            self.to_send.append(step.send)


def shake_hands(
    of_member: bytes, of_coordinator: bytes, nonces: tuple[bytes, bytes] = NONCES
) -> tuple[Speaker, Speaker]:
    """Let a member and a coordinator exchange bytes until neither has more to send."""
    member = Speaker(member_handshake(of_member, nonces[0]))
    coordinator = Speaker(coordinator_handshake(of_coordinator, nonces[1]))
    while member.to_send or coordinator.to_send:
        to_coordinator, member.to_send = member.to_send, []
        coordinator.receive(b"".join(to_coordinator))
        to_member, coordinator.to_send = coordinator.to_send, []
        member.receive(b"".join(to_member))
    return member, coordinator


@pytest.mark.parametrize("token", [b"", b"secret", b"\x00", b"x" * 10_000])
def test_the_same_token_or_none_is_well(token: bytes) -> None:
    """Both sides go on, and nothing is left over."""
    member, coordinator = shake_hands(token, token)

    assert (member.done, member.fault, member.received) == (True, None, b"")
    assert (coordinator.done, coordinator.fault, coordinator.received) == (True, None, b"")


@pytest.mark.parametrize(
    ("tokens", "of_member", "of_coordinator"),
    [
        ((b"one", b"other"), Fault.WRONG_TOKEN, Fault.WRONG_TOKEN),
        ((b"one", b""), Fault.HAS_NO_TOKEN, Fault.HAS_A_TOKEN),
        ((b"", b"other"), Fault.HAS_A_TOKEN, Fault.HAS_NO_TOKEN),
    ],
)
def test_both_sides_know_that_they_differ(
    tokens: tuple[bytes, bytes], of_member: Fault, of_coordinator: Fault
) -> None:
    """So both can say so."""
    member, coordinator = shake_hands(*tokens)

    assert (member.fault, coordinator.fault) == (of_member, of_coordinator)


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_only_the_token_opens(one: bytes, other: bytes) -> None:
    """Any two tokens."""
    member, coordinator = shake_hands(one, other)

    assert (coordinator.fault is None) == (member.fault is None) == (one == other)


def test_the_token_itself_never_travels() -> None:
    """Nor does anything that is the same the next time."""
    proofs = []
    for nonces in ((b"1" * 32, b"2" * 32), (b"3" * 32, b"4" * 32)):
        member = Speaker(member_handshake(b"secret", nonces[0]))
        coordinator = Speaker(coordinator_handshake(b"secret", nonces[1]))
        coordinator.receive(member.to_send.pop())
        member.receive(coordinator.to_send.pop())
        proofs.append(member.to_send.pop())

    assert proofs[0] != proofs[1]
    assert all(b"secret" not in proof for proof in proofs)


def test_a_recorded_handshake_opens_nothing() -> None:
    """The coordinator asks for a proof over its own fresh nonce."""
    member = Speaker(member_handshake(b"secret", b"m" * 32))
    first = Speaker(coordinator_handshake(b"secret", b"1" * 32))
    recorded = [*member.to_send]
    first.receive(member.to_send.pop())
    member.receive(first.to_send.pop())
    recorded += member.to_send

    second = Speaker(coordinator_handshake(b"secret", b"2" * 32))
    second.receive(b"".join(recorded))

    assert second.fault is Fault.WRONG_TOKEN


def test_a_coordinator_that_only_nods_is_not_believed() -> None:
    """The member wants a proof, too, and its own one is none."""
    member = Speaker(member_handshake(b"secret", b"m" * 32))
    member.to_send.clear()
    member.receive(struct.pack(">12sHcB32s", MAGIC, VERSION, b"C", 1, b"c" * 32))
    (proof,) = member.to_send

    member.receive(b"\x01" + proof)

    assert member.fault is Fault.WRONG_TOKEN


def test_another_version_is_told_to_both() -> None:
    """The opening has the same form in all versions; node 0 answers it, so that both can tell."""
    newer = struct.pack(">12sHcB32s", MAGIC, VERSION + 1, b"M", 0, b"m" * 32)
    coordinator = Speaker(coordinator_handshake(b"", b"c" * 32))

    coordinator.receive(newer)
    (answer,) = coordinator.to_send

    assert coordinator.fault is Fault.OTHER_VERSION
    assert answer.startswith(MAGIC + VERSION.to_bytes(2, "big"))


def test_the_version_of_the_other_side_is_known() -> None:
    """For the message."""
    steps = member_handshake(b"", b"m" * 32)
    next(steps)

    with pytest.raises(HandshakeFailed) as caught:
        steps.send(struct.pack(">12sHcB32s", MAGIC, 7, b"C", 0, b"c" * 32))

    assert caught.value.version == 7


def test_who_reaches_himself_finds_no_clusterrun() -> None:
    """The kernel connects a socket to itself when the port happens to be its own."""
    member = Speaker(member_handshake(b"", b"m" * 32))

    member.receive(member.to_send[0])

    assert member.fault is Fault.NOT_CLUSTERRUN


def test_the_coordinator_is_silent_until_it_is_hailed() -> None:
    """A port scanner receives nothing."""
    coordinator = Speaker(coordinator_handshake(b"", b"c" * 32))

    assert coordinator.to_send == []
    assert coordinator.step.begins == MAGIC


def test_the_magic_is_no_word_of_a_store() -> None:
    """Torch's store reads a number of a query first: ours is far from all of them."""
    assert MAGIC[0] > 0x80
    assert socket.ntohl(int.from_bytes(MAGIC[:4], "little")) > 1 << 20
