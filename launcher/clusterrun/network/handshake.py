r"""The handshake on a new connection: both sides check the version and the token.

Each side sends an opening of 48 bytes, whose format is the same in all versions:

    magic 12 | version 2 | side 1 ("M" or "C") | token 1 (0 or 1) | nonce 32

and then the coordinator's address as this side sees it: 16 bytes of IPv6 (IPv4 is mapped) and 2 of
the port. The member sends the address that it dialed, the coordinator that of its own socket.

The member sends its opening first, so a program that only connects learns nothing. The coordinator
answers with its opening and its address, and the member sends its address. If the job has a token,
the member also sends a proof of 32 bytes, and the coordinator answers with 0x01 and its own proof, or
with 0x00 and zeros:

    proof = HMAC-SHA256(token, side + both openings + both addresses)

Nothing else is read before that. Each frame after it has a MAC, whose key is derived in the same way.

The two addresses differ behind NAT and behind a Kubernetes service. They also differ if a program on
node 0's host has taken the port and forwards the connection. In that case the dialed address belongs
to that host, and the coordinator answers with 0x02 and a proof for this refusal.
"""

import os
import socket
import struct
from collections.abc import Callable, Generator
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from clusterrun.network.addresses import plain_address

VERSION = 6
"""Of the protocol."""

MAGIC = b"\x93clusterrun\n"
NONCE_BYTES = 32
MAC_BYTES = 16

NO_ADDRESS = bytes(18)
"""The address of a Unix socket."""

_OPENING = struct.Struct(f">{len(MAGIC)}sHcB{NONCE_BYTES}s")
_ADDRESS_BYTES = len(NO_ADDRESS)
_PROOF_BYTES = 32
_COUNTER_BYTES = 8
_MEMBER, _COORDINATOR, _REFUSAL = b"M", b"C", b"R"
"""The purposes of proofs: either side's identity, or the refusal of a forwarded connection. The first
two are also the ``side`` of an opening."""

_FROM_MEMBER, _FROM_COORDINATOR = b"m", b"c"
"""The purposes of MAC keys: frames in either direction."""

_DENIED, _GRANTED, _RELAYED = b"\x00", b"\x01", b"\x02"


class Fault(Enum):
    """Why a handshake failed. Node 0 prints the text after "refused ADDRESS: it "."""

    NOT_CLUSTERRUN = "does not speak clusterrun's protocol"
    OTHER_VERSION = (
        "speaks version {version} of clusterrun's protocol, but this clusterrun speaks {own}"
    )
    HAS_A_TOKEN = "has a token, but this job has none"  # noqa: S105 - no password
    HAS_NO_TOKEN = "has no token, but this job has one"  # noqa: S105 - no password
    WRONG_TOKEN = "has a different token"  # noqa: S105 - no password
    RELAYED = "connected to {dialed}, and another program on this host forwarded the connection"


class BadFrame(Exception):
    """The peer sent bytes that no clusterrun of this job sends: the text says which."""


class HandshakeFailed(BadFrame):
    """The peer does not belong to this job.

    ``version`` is the peer's, ``dialed`` the address and port that a forwarded member dialed.
    """

    def __init__(self, fault: Fault, version: int = VERSION, dialed: str = "") -> None:
        super().__init__(fault.value.format(version=version, own=VERSION, dialed=dialed))
        self.fault = fault
        self.version = version


class FrameMac:
    """The MACs of the frames in one direction of a connection.

    Each covers the frame's number, so no frame can be repeated, dropped or reordered.
    """

    def __init__(self, key: bytes) -> None:
        import hmac

        # A copy costs half as much as a new HMAC with the same key.
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def mac(self, body: bytes) -> bytes:
        """Return the MAC of the next frame's body."""
        self._count += 1
        made = self._keyed.copy()
        made.update(self._count.to_bytes(_COUNTER_BYTES, "big") + body)
        return made.digest()[:MAC_BYTES]

    def verify(self, body: bytes, mac: bytes) -> bool:
        """Return whether ``mac`` is the MAC of the next frame, with this body."""
        return _is_same(self.mac(body), mac)


class FrameMacs(NamedTuple):
    """The MACs of both directions."""

    sent: FrameMac
    received: FrameMac


class Step(NamedTuple):
    """One step of a handshake: bytes to send, then bytes to receive."""

    send: bytes
    size: int
    """Number of bytes to receive."""
    prefix: bytes = b""
    """The first bytes to receive: the handshake fails at the first one that differs."""


Handshake = Generator[Step, bytes, FrameMacs | None]
"""One side of a handshake: it yields steps and is sent the received bytes.

It returns the MACs of the connection, or None if the job has no token. If the sides disagree, it
raises ``HandshakeFailed``.
"""


class _Opening(NamedTuple):
    magic: bytes
    version: int
    side: bytes
    token: int
    nonce: bytes


def member_handshake(
    token: bytes, dialed: bytes = NO_ADDRESS, nonce: bytes | None = None
) -> Handshake:
    """Return the member's side of a handshake.

    Args:
        token: b"" if the job has none.
        dialed: the ``packed_address`` to which the member connects.
        nonce: set by tests.

    """
    own = _opening(_MEMBER, token, nonce)
    received = yield Step(own, _OPENING.size, MAGIC)
    _check(received, _COORDINATOR, token)
    of_coordinator = yield Step(b"", _ADDRESS_BYTES)
    if not token:
        yield Step(dialed, 0)
        return None
    derive = partial(_derive, token, own + received + dialed + of_coordinator)
    answer = yield Step(dialed + derive(_MEMBER), 1 + _PROOF_BYTES)
    if _is_same(answer, _RELAYED + derive(_REFUSAL)):
        raise HandshakeFailed(Fault.RELAYED)
    if not _is_same(answer, _GRANTED + derive(_COORDINATOR)):
        raise HandshakeFailed(Fault.WRONG_TOKEN)
    return FrameMacs(FrameMac(derive(_FROM_MEMBER)), FrameMac(derive(_FROM_COORDINATOR)))


def coordinator_handshake(
    token: bytes,
    own_end: bytes = NO_ADDRESS,
    is_own: Callable[[str], bool] = lambda _: False,
    nonce: bytes | None = None,
) -> Handshake:
    """Return the coordinator's side of a handshake.

    Args:
        token: b"" if the job has none.
        own_end: the ``packed_address`` of this end of the connection.
        is_own: returns whether an IP address belongs to this machine. It is only called if a member
            with the token has dialed an address different from ``own_end``.
        nonce: set by tests.

    """
    received = yield Step(b"", _OPENING.size, MAGIC)
    own = _opening(_COORDINATOR, token, nonce)
    try:
        _check(received, _MEMBER, token)
    except HandshakeFailed:
        # The member reports the same fault.
        yield Step(own, 0)
        raise
    answer = yield Step(own + own_end, _ADDRESS_BYTES + (_PROOF_BYTES if token else 0))
    if not token:
        return None
    dialed, proof = answer[:_ADDRESS_BYTES], answer[_ADDRESS_BYTES:]
    derive = partial(_derive, token, received + own + dialed + own_end)
    if not _is_same(proof, derive(_MEMBER)):
        yield Step(_DENIED + bytes(_PROOF_BYTES), 0)
        raise HandshakeFailed(Fault.WRONG_TOKEN)
    if dialed != own_end and is_own(_host_of(dialed)):
        yield Step(_RELAYED + derive(_REFUSAL), 0)
        raise HandshakeFailed(Fault.RELAYED, dialed=_address_text(dialed))
    yield Step(_GRANTED + derive(_COORDINATOR), 0)
    return FrameMacs(FrameMac(derive(_FROM_COORDINATOR)), FrameMac(derive(_FROM_MEMBER)))


def packed_address(sockname: tuple[Any, ...]) -> bytes:
    """Return the address and port of a TCP socket's name in 18 bytes.

    The scope of a link-local address is omitted, because it differs between machines.
    """
    host = plain_address(sockname[0])
    packed = socket.inet_pton(socket.AF_INET6, host if ":" in host else f"::ffff:{host}")
    return packed + int(sockname[1]).to_bytes(2, "big")


def _host_of(address: bytes) -> str:
    return plain_address(socket.inet_ntop(socket.AF_INET6, address[:-2]))


def _address_text(address: bytes) -> str:
    host, port = _host_of(address), int.from_bytes(address[-2:], "big")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _opening(side: bytes, token: bytes, nonce: bytes | None) -> bytes:
    return _OPENING.pack(MAGIC, VERSION, side, bool(token), nonce or os.urandom(NONCE_BYTES))


def _check(received: bytes, expected: bytes, token: bytes) -> None:
    theirs = _Opening(*_OPENING.unpack(received))
    if theirs.version != VERSION:
        raise HandshakeFailed(Fault.OTHER_VERSION, theirs.version)
    if theirs.side != expected:
        # Perhaps a TCP connection of the socket to itself, which the kernel allows on ephemeral ports.
        raise HandshakeFailed(Fault.NOT_CLUSTERRUN)
    if bool(theirs.token) != bool(token):
        raise HandshakeFailed(Fault.HAS_A_TOKEN if theirs.token else Fault.HAS_NO_TOKEN)


def _derive(token: bytes, exchanged: bytes, purpose: bytes) -> bytes:
    """Return a proof or a key.

    ``exchanged``: the openings of member and coordinator, then their addresses.
    """
    # Jobs without a token do not need it.
    import hmac

    return hmac.digest(token, purpose + exchanged, "sha256")


def _is_same(one: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(one, other)
