r"""The handshake on a new connection: both sides check the version and the token.

Each side sends an opening of 48 bytes, the same in all versions:

    magic 12 | version 2 | side 1 ("M" or "C") | token 1 (0 or 1) | nonce 32

The member sends first: a stranger that only connects learns nothing. With a token the member then
sends 32 bytes of HMAC-SHA256 over both openings, and the coordinator answers with 0x01 and its own
HMAC, or with 0x00 and zeros. Nothing else is read before that.
"""

import struct
from collections.abc import Generator
from enum import Enum, auto
from typing import NamedTuple, assert_never

VERSION = 3
"""The version of the protocol that this clusterrun uses."""

MAGIC = b"\x93clusterrun\n"
NONCE_BYTES = 32

_OPENING = struct.Struct(f">{len(MAGIC)}sHcB{NONCE_BYTES}s")
_PROOF_BYTES = 32
_MEMBER, _COORDINATOR = b"M", b"C"
"""Which of the two sent an opening."""

_GRANTED = b"\x01"
_DENIED = bytes(1 + _PROOF_BYTES)


class Fault(Enum):
    """Why a handshake failed."""

    NOT_CLUSTERRUN = auto()
    OTHER_VERSION = auto()
    HAS_A_TOKEN = auto()
    """The other side has a token, and this one has none."""
    HAS_NO_TOKEN = auto()
    """This side has a token, and the other one has none."""
    WRONG_TOKEN = auto()


class HandshakeFailed(Exception):
    """The other side does not belong to this job; ``version`` is the one that it uses."""

    def __init__(self, fault: Fault, version: int = VERSION) -> None:
        super().__init__(fault.name)
        self.fault = fault
        self.version = version


class Step(NamedTuple):
    """What to send next, and how many bytes to expect then."""

    send: bytes
    expect: int
    begins: bytes = b""
    """The first of these bytes: the handshake fails at the first one that differs."""


Steps = Generator[Step, bytes, None]
"""One side of a handshake: it yields steps and is sent the expected bytes. It returns when both sides
agree, otherwise it raises ``HandshakeFailed``."""


class _Opening(NamedTuple):
    magic: bytes
    version: int
    side: bytes
    token: int
    nonce: bytes


def member_handshake(token: bytes, nonce: bytes) -> Steps:
    """Return the member's side of a handshake; ``token`` is b"" if the job has none."""
    own = _opening(_MEMBER, token, nonce)
    received = yield Step(own, _OPENING.size, MAGIC)
    _check(_Opening(*_OPENING.unpack(received)), _COORDINATOR, token)
    if token:
        answer = yield Step(_proof(token, _MEMBER, own, received), len(_DENIED))
        proof = _proof(token, _COORDINATOR, own, received)
        if not _same(answer, _GRANTED + proof):
            raise HandshakeFailed(Fault.WRONG_TOKEN)


def coordinator_handshake(token: bytes, nonce: bytes) -> Steps:
    """Return the coordinator's side of a handshake; ``token`` is b"" if the job has none."""
    received = yield Step(b"", _OPENING.size, MAGIC)
    own = _opening(_COORDINATOR, token, nonce)
    try:
        _check(_Opening(*_OPENING.unpack(received)), _MEMBER, token)
    except HandshakeFailed:
        # The member reports the same fault.
        yield Step(own, 0)
        raise
    proof = yield Step(own, _PROOF_BYTES if token else 0)
    if token and not _same(proof, _proof(token, _MEMBER, received, own)):
        yield Step(_DENIED, 0)
        raise HandshakeFailed(Fault.WRONG_TOKEN)
    if token:
        yield Step(_GRANTED + _proof(token, _COORDINATOR, received, own), 0)


def _opening(side: bytes, token: bytes, nonce: bytes) -> bytes:
    return _OPENING.pack(MAGIC, VERSION, side, bool(token), nonce)


def _check(theirs: _Opening, expected: bytes, token: bytes) -> None:
    if theirs.version != VERSION:
        raise HandshakeFailed(Fault.OTHER_VERSION, theirs.version)
    if theirs.side != expected:
        # Perhaps a connection to itself: the kernel may make one on an ephemeral port.
        raise HandshakeFailed(Fault.NOT_CLUSTERRUN)
    if bool(theirs.token) != bool(token):
        raise HandshakeFailed(Fault.HAS_A_TOKEN if theirs.token else Fault.HAS_NO_TOKEN)


def _proof(token: bytes, side: bytes, of_member: bytes, of_coordinator: bytes) -> bytes:
    import hmac

    return hmac.digest(token, side + of_member + of_coordinator, "sha256")


def _same(one: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(one, other)


def describe_caller_fault(failure: HandshakeFailed) -> str:
    """Return why node 0 refused a caller."""
    match failure.fault:
        case Fault.NOT_CLUSTERRUN:
            return "it does not speak clusterrun's protocol"
        case Fault.OTHER_VERSION:
            return (
                f"it speaks version {failure.version} of clusterrun's protocol, this is {VERSION}"
            )
        case Fault.HAS_A_TOKEN:
            return "it has a token, and this job has none"
        case Fault.HAS_NO_TOKEN:
            return "it has no token, and this job has one"
        case Fault.WRONG_TOKEN:
            return "it has another token"
        case _:
            assert_never(failure.fault)
