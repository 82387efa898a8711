r"""The first words on a connection: who speaks here, in which version, and do both hold the token.

Each side hails with 48 bytes, whatever its version:

    magic 12 | version 2 | side 1 ("M" or "C") | token 1 (0 or 1) | nonce 32

The member hails first, so that a stranger who connects hears nothing. With a token the member then
proves that it holds it, 32 bytes of HMAC-SHA256 over both nonces, and the coordinator answers
with 0x01 and its own proof, or with 0x00 and zeros. Nothing else is read before that.
"""

import struct
from collections.abc import Generator
from enum import Enum, auto
from typing import NamedTuple, assert_never

VERSION = 1
"""The version of the protocol that this clusterrun speaks."""

MAGIC = b"\x93clusterrun\n"
NONCE_BYTES = 32

_HAIL = struct.Struct(f">{len(MAGIC)}sHcB{NONCE_BYTES}s")
_PROOF_BYTES = 32
_GRANTED = b"\x01"
_DENIED = bytes(1 + _PROOF_BYTES)


class Fault(Enum):
    """What may be wrong with the other side."""

    NO_CLUSTERRUN = auto()
    OTHER_VERSION = auto()
    HAS_A_TOKEN = auto()
    """And we have none."""
    HAS_NO_TOKEN = auto()
    """And we have one."""
    WRONG_TOKEN = auto()


class HandshakeFailed(Exception):
    """The other side is not one to talk to."""

    def __init__(self, fault: Fault, version: int = VERSION) -> None:
        """Take what is wrong, and the ``version`` that the other side speaks."""
        super().__init__(fault.name)
        self.fault = fault
        self.version = version


class Side(Enum):
    """Who speaks."""

    MEMBER = b"M"
    COORDINATOR = b"C"


class Step(NamedTuple):
    """What to send next, and how many bytes are expected then."""

    send: bytes
    expect: int
    begins: bytes = b""
    """What those bytes must begin with: anything else is refused at its first wrong byte."""


Steps = Generator[Step, bytes, None]
"""One side of a greeting: yields steps and is sent what was expected; returns when all is well,
raises ``HandshakeFailed`` when it isn't."""


class _Hail(NamedTuple):
    magic: bytes
    version: int
    side: bytes
    token: int
    nonce: bytes


def greet_coordinator(token: bytes, nonce: bytes) -> Steps:
    """Return the member's side of a greeting; ``token`` is b"" where there is none."""
    own = _hail(Side.MEMBER, token, nonce)
    heard = yield Step(own, _HAIL.size, MAGIC)
    theirs = _Hail(*_HAIL.unpack(heard))
    _check(theirs, Side.COORDINATOR, token)
    if token:
        answer = yield Step(_proof(token, Side.MEMBER, own, heard), len(_DENIED))
        proof = _proof(token, Side.COORDINATOR, own, heard)
        if not _same(answer, _GRANTED + proof):
            raise HandshakeFailed(Fault.WRONG_TOKEN)


def greet_member(token: bytes, nonce: bytes) -> Steps:
    """Return the coordinator's side of a greeting; ``token`` is b"" where there is none."""
    heard = yield Step(b"", _HAIL.size, MAGIC)
    own = _hail(Side.COORDINATOR, token, nonce)
    try:
        _check(_Hail(*_HAIL.unpack(heard)), Side.MEMBER, token)
    except HandshakeFailed:
        # So that it can tell, too.
        yield Step(own, 0)
        raise
    proof = yield Step(own, _PROOF_BYTES if token else 0)
    if token and not _same(proof, _proof(token, Side.MEMBER, heard, own)):
        yield Step(_DENIED, 0)
        raise HandshakeFailed(Fault.WRONG_TOKEN)
    if token:
        yield Step(_GRANTED + _proof(token, Side.COORDINATOR, heard, own), 0)


def _hail(side: Side, token: bytes, nonce: bytes) -> bytes:
    return _HAIL.pack(MAGIC, VERSION, side.value, bool(token), nonce)


def _check(theirs: _Hail, expected: Side, token: bytes) -> None:
    if theirs.version != VERSION:
        raise HandshakeFailed(Fault.OTHER_VERSION, theirs.version)
    if theirs.side != expected.value:
        # A connection to itself, for one: the kernel makes these on ports of the ephemeral range.
        raise HandshakeFailed(Fault.NO_CLUSTERRUN)
    if bool(theirs.token) != bool(token):
        raise HandshakeFailed(Fault.HAS_A_TOKEN if theirs.token else Fault.HAS_NO_TOKEN)


def _proof(token: bytes, side: Side, of_member: bytes, of_coordinator: bytes) -> bytes:
    import hmac

    return hmac.digest(token, side.value + of_member + of_coordinator, "sha256")


def _same(one: bytes, other: bytes) -> bool:
    import hmac

    return hmac.compare_digest(one, other)


def fault_of_caller(failure: HandshakeFailed) -> str:
    """Return what is wrong with somebody who connected, for node 0."""
    match failure.fault:
        case Fault.NO_CLUSTERRUN:
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
