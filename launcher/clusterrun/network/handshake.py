r"""The handshake on a new connection: both sides check the version and the token.

Each side sends an opening of 48 bytes, the same in all versions:

    magic 12 | version 2 | side 1 ("M" or "C") | token 1 (0 or 1) | nonce 32

and then the coordinator's address as this side knows it: 16 bytes of IPv6 (IPv4 is mapped) and 2 of
the port. The member knows the address that it has dialed, the coordinator that of its own end.

The member sends its opening first: a stranger that only connects learns nothing. The coordinator
answers with both, the member with its address. With a token the member then sends a proof of 32
bytes, and the coordinator answers with 0x01 and its own proof, or with 0x00 and zeros:

    proof = HMAC-SHA256(token, side + both openings + both addresses)

Nothing else is read before that. Each frame after it has a MAC, by keys made in the same way.

Both addresses differ behind address translation and a service. They also differ if a program on node
0's host has taken the port and passes the connection on: then the dialed address is one of that
host's own, and the coordinator answers with 0x02 and a proof of that.
"""

import os
import socket
import struct
from collections.abc import Callable, Generator
from enum import Enum
from functools import partial
from typing import NamedTuple

from clusterrun.network.addresses import plain_address

VERSION = 6
"""The version of the protocol that this clusterrun uses."""

MAGIC = b"\x93clusterrun\n"
NONCE_BYTES = 32
MAC_BYTES = 16
"""Of each frame."""

NO_ADDRESS = bytes(18)
"""In place of an address, on a connection that is not TCP."""

_OPENING = struct.Struct(f">{len(MAGIC)}sHcB{NONCE_BYTES}s")
_ADDRESS_BYTES = len(NO_ADDRESS)
_PROOF_BYTES = 32
_COUNTER_BYTES = 8
_MEMBER, _COORDINATOR, _REFUSAL = b"M", b"C", b"R"
"""What a proof is of: a side, which its opening names too, or that another program passes the
connection on."""

_FROM_MEMBER, _FROM_COORDINATOR = b"m", b"c"
"""What a key of MACs is for."""

_DENIED, _GRANTED, _RELAYED = b"\x00", b"\x01", b"\x02"


class Fault(Enum):
    """Why a handshake failed: what node 0 prints of a caller, after "it "."""

    NOT_CLUSTERRUN = "does not speak clusterrun's protocol"
    OTHER_VERSION = "speaks version {version} of clusterrun's protocol, this is {own}"
    HAS_A_TOKEN = "has a token, and this job has none"  # noqa: S105 - no password
    HAS_NO_TOKEN = "has no token, and this job has one"  # noqa: S105 - no password
    WRONG_TOKEN = "has a different token"  # noqa: S105 - no password
    RELAYED = "connected to {dialed}, and another program on this host forwarded the connection"


class BadFrame(Exception):
    """The other side sent bytes that no clusterrun of this job sends: the text says which."""


class HandshakeFailed(BadFrame):
    """The other side does not belong to this job.

    ``version`` is the one that it uses, ``dialed`` the address and port that a relayed member called.
    """

    def __init__(self, fault: Fault, version: int = VERSION, dialed: str = "") -> None:
        super().__init__(fault.value.format(version=version, own=VERSION, dialed=dialed))
        self.fault = fault
        self.version = version


class FrameMac:
    """Makes the MACs of one direction of a connection.

    The counter of frames is part of each, so that none can be repeated, dropped or moved.
    """

    def __init__(self, key: bytes) -> None:
        import hmac

        # A copy of it costs half of what the key costs each time.
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def mac(self, body: bytes) -> bytes:
        """Return the MAC of the next frame's body."""
        self._count += 1
        made = self._keyed.copy()
        made.update(self._count.to_bytes(_COUNTER_BYTES, "big") + body)
        return made.digest()[:MAC_BYTES]

    def is_of_next(self, body: bytes, mac: bytes) -> bool:
        """Return whether ``mac`` is that of the next frame, with this body."""
        return _same(self.mac(body), mac)


class FrameMacs(NamedTuple):
    """Those of both directions, as one side has them."""

    sent: FrameMac
    received: FrameMac


class Step(NamedTuple):
    """What to send next, and how many bytes to expect then."""

    send: bytes
    expect: int
    begins: bytes = b""
    """The first of these bytes: the handshake fails at the first one that differs."""


Handshake = Generator[Step, bytes, FrameMacs | None]
"""One side of a handshake: it yields steps and is sent the expected bytes. It returns the seals, None
without a token, when both sides agree; otherwise it raises ``HandshakeFailed``."""


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
        dialed: the ``packed_address`` to which it connects.
        nonce: random bytes; by default new ones.

    """
    own = _opening(_MEMBER, token, nonce)
    received = yield Step(own, _OPENING.size, MAGIC)
    _check(received, _COORDINATOR, token)
    of_coordinator = yield Step(b"", _ADDRESS_BYTES)
    if not token:
        yield Step(dialed, 0)
        return None
    derived = partial(_derived, token, own + received + dialed + of_coordinator)
    answer = yield Step(dialed + derived(_MEMBER), 1 + _PROOF_BYTES)
    if _same(answer, _RELAYED + derived(_REFUSAL)):
        raise HandshakeFailed(Fault.RELAYED)
    if not _same(answer, _GRANTED + derived(_COORDINATOR)):
        raise HandshakeFailed(Fault.WRONG_TOKEN)
    return FrameMacs(FrameMac(derived(_FROM_MEMBER)), FrameMac(derived(_FROM_COORDINATOR)))


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
        is_own: says whether an IP address is one of this machine's own; called only if a member with
            the token has dialed another address than ``own_end``.
        nonce: random bytes; by default new ones.

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
    derived = partial(_derived, token, received + own + dialed + own_end)
    if not _same(proof, derived(_MEMBER)):
        yield Step(_DENIED + bytes(_PROOF_BYTES), 0)
        raise HandshakeFailed(Fault.WRONG_TOKEN)
    if dialed != own_end and is_own(_host_of(dialed)):
        yield Step(_RELAYED + derived(_REFUSAL), 0)
        raise HandshakeFailed(Fault.RELAYED, dialed=_in_words(dialed))
    yield Step(_GRANTED + derived(_COORDINATOR), 0)
    return FrameMacs(FrameMac(derived(_FROM_COORDINATOR)), FrameMac(derived(_FROM_MEMBER)))


def packed_address(where: object) -> bytes:
    """Return the address and port of a socket's name, in 18 bytes; NO_ADDRESS if it is not TCP's.

    The scope of a link-local address is left out: it differs between machines.
    """
    if not isinstance(where, tuple):
        return NO_ADDRESS
    host = plain_address(where)
    packed = socket.inet_pton(socket.AF_INET6, host if ":" in host else f"::ffff:{host}")
    return packed + int(where[1]).to_bytes(2, "big")


def _host_of(address: bytes) -> str:
    return plain_address((socket.inet_ntop(socket.AF_INET6, address[:-2]),))


def _in_words(address: bytes) -> str:
    host, port = _host_of(address), int.from_bytes(address[-2:], "big")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _opening(side: bytes, token: bytes, nonce: bytes | None) -> bytes:
    return _OPENING.pack(MAGIC, VERSION, side, bool(token), nonce or os.urandom(NONCE_BYTES))


def _check(received: bytes, expected: bytes, token: bytes) -> None:
    theirs = _Opening(*_OPENING.unpack(received))
    if theirs.version != VERSION:
        raise HandshakeFailed(Fault.OTHER_VERSION, theirs.version)
    if theirs.side != expected:
        # Perhaps a connection to itself: the kernel may make one on an ephemeral port.
        raise HandshakeFailed(Fault.NOT_CLUSTERRUN)
    if bool(theirs.token) != bool(token):
        raise HandshakeFailed(Fault.HAS_A_TOKEN if theirs.token else Fault.HAS_NO_TOKEN)


def _derived(token: bytes, exchanged: bytes, purpose: bytes) -> bytes:
    """Return a proof or a key.

    ``exchanged``: the member's opening and the coordinator's, then their addresses.
    """
    # Only jobs with a token pay for the import.
    import hmac

    return hmac.digest(token, purpose + exchanged, "sha256")


def _same(one: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(one, other)
