"""What a caller and its ranks send each other: connections that know a key, frames, and values.

Both import it, ranks in the workers' interpreter (Python 3.8 or newer): it needs the standard library
and cloudpickle. A rank dials; before the key is proved by both, 96 bytes are read and nothing is made
of them:

    rank to caller     nonce (32 bytes)
    caller to rank     nonce (32), HMAC-SHA256(key, "caller" + both nonces)
    rank to caller     HMAC-SHA256(key, "rank" + both nonces)

Frames follow: ``kind 1 | call 4 | parts 4 | length of each part 8 | parts [| MAC 32]``. The first part
is a pickle, the others are its out-of-band buffers (PEP 574). Frames have MACs unless both ends are on
one host, where nobody else writes into a connection.
"""

from __future__ import annotations

import hmac
import marshal
import os
import pickle
import socket
import struct
import sys
from io import BytesIO
from types import CodeType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from typing import Any

    Part = bytes | bytearray | memoryview
    Frame = tuple[int, int, list[bytearray]]

NAME = "clusterrun_wire"
"""Of this module in pickles: ranks don't have the package."""

READY, HELLO, CALL, LAST_CALL, RETURNED, RAISED, INTERRUPT, BREAK, LEAVE = range(9)
"""Kinds of frames; ``READY`` is not sent: the other side has proved that it knows the key."""

MAX_PARTS = 1 << 20
MIN_OUT_OF_BAND = 1 << 12
"""Bytes of a tensor; smaller ones are in the pickle."""

MAX_AT_ONCE = 64
"""Buffers in one system call."""

_NONCE = _MAC = 32
_HEAD = struct.Struct(">BII")


class Disconnected(Exception):
    """The other side has closed the connection, does not know the key, or sends something else."""


class RankConnection:
    """A connection; the socket may block or not. Only the caller's side accepts."""

    def __init__(self, sock: socket.socket, key: bytes, *, accepts: bool) -> None:
        """Begin the handshake."""
        self.sock = sock
        self._key = key
        self._sends_mac = self._reads_mac = b""
        """Keys of both directions; b"": frames have no MACs."""
        self._sent = self._read = 0
        self._out: list[memoryview] = []
        self._nonce = os.urandom(_NONCE)
        if not accepts:
            self._queue_bytes(self._nonce)
        self._parser = self._accepted() if accepts else self._dialled()
        self._want = self._next_want()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket, and break the cycle of this object and its generator.

        A forked process that has garbage with sockets in it ends as Python does, and frees each object:
        a second of CPU time with torch.
        """
        self.sock.close()
        self._parser.close()
        del self._parser

    # Sending.

    def queue(self, kind: int, call: int, parts: Sequence[Part] = (b"",)) -> None:
        """Have a frame sent by ``flush``; ``call`` is the number of the call that it is about."""
        views = [memoryview(part).cast("B") for part in parts]
        head = _HEAD.pack(kind, call, len(views))
        head += struct.pack(f">{len(views)}Q", *map(len, views))
        self._queue_bytes(head, *views)
        if self._sends_mac:
            self._queue_bytes(_mac(self._sends_mac, self._sent, head, views))
        self._sent += 1

    @property
    def is_sending(self) -> bool:
        """Whether the socket has not taken everything yet."""
        return bool(self._out)

    def flush(self) -> None:
        """Send what the socket takes; all, if it blocks.

        Raises:
            Disconnected: the other side is gone.

        """
        while self._out:
            try:
                sent = self.sock.sendmsg(self._out[:MAX_AT_ONCE])
            except BlockingIOError:
                return
            except OSError as error:
                raise Disconnected(str(error)) from None
            while self._out and sent >= len(self._out[0]):
                sent -= len(self._out.pop(0))
            if sent:
                self._out[0] = self._out[0][sent:]

    def send(self, kind: int, call: int, parts: Sequence[Part] = (b"",)) -> None:
        """Queue a frame, and ``flush``."""
        self.queue(kind, call, parts)
        self.flush()

    def _queue_bytes(self, *parts: Part) -> None:
        self._out += [memoryview(part) for part in parts if part]

    # Receiving.

    def receive(self) -> Frame | None:
        """Return the next frame; None: a socket that does not block has no more.

        Raises:
            Disconnected: the other side is gone, or must not be listened to.

        """
        while True:
            try:
                count = self.sock.recv_into(self._want)
            except BlockingIOError:
                return None
            except OSError as error:
                raise Disconnected(str(error)) from None
            if not count:
                raise Disconnected("it has closed the connection")
            self._want = self._want[count:]
            if not self._want:
                made = next(self._parser)
                if not isinstance(made, memoryview):
                    self._want = self._next_want()
                    return made
                self._want = made

    def _next_want(self) -> memoryview:
        made = next(self._parser)
        if not isinstance(made, memoryview):
            raise AssertionError("two frames without a byte between them")  # noqa: TRY004
        return made

    def _accepted(self) -> Generator[memoryview | Frame, None, None]:
        nonce = bytearray(_NONCE)
        yield memoryview(nonce)
        nonces = bytes(nonce) + self._nonce
        self._queue_bytes(self._nonce, self._proof(b"caller", nonces))
        self.flush()
        proof = bytearray(_MAC)
        yield memoryview(proof)
        self._check(proof, self._proof(b"rank", nonces))
        self._agree(b"caller", b"rank", nonces)
        yield READY, 0, []
        yield from self._frames()

    def _dialled(self) -> Generator[memoryview | Frame, None, None]:
        answer = bytearray(_NONCE + _MAC)
        yield memoryview(answer)
        nonces = self._nonce + bytes(answer[:_NONCE])
        self._check(answer[_NONCE:], self._proof(b"caller", nonces))
        self._queue_bytes(self._proof(b"rank", nonces))
        self.flush()
        self._agree(b"rank", b"caller", nonces)
        yield READY, 0, []
        yield from self._frames()

    def _proof(self, side: bytes, nonces: bytes) -> bytes:
        return hmac.digest(self._key, side + nonces, "sha256")

    def _check(self, given: bytearray, expected: bytes) -> None:
        if not hmac.compare_digest(bytes(given), expected):
            raise Disconnected("it does not know the key")

    def _agree(self, ours: bytes, theirs: bytes, nonces: bytes) -> None:
        """Choose the keys of both directions, if frames have MACs."""
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.sock.getsockname()[0] != self.sock.getpeername()[0]:
            self._sends_mac = self._proof(b"frames of " + ours, nonces)
            self._reads_mac = self._proof(b"frames of " + theirs, nonces)

    def _frames(self) -> Generator[memoryview | Frame, None, None]:
        while True:
            head = bytearray(_HEAD.size)
            yield memoryview(head)
            kind, call, count = _HEAD.unpack(head)
            if not 0 < count <= MAX_PARTS:
                raise Disconnected("it sends something else")
            lengths = bytearray(8 * count)
            yield memoryview(lengths)
            try:
                parts = [bytearray(length) for length in struct.unpack(f">{count}Q", lengths)]
            except (MemoryError, OverflowError):
                raise Disconnected("it sends more than there is memory for") from None
            for part in parts:
                if part:
                    yield memoryview(part)
            if self._reads_mac:
                given = bytearray(_MAC)
                yield memoryview(given)
                self._check(given, _mac(self._reads_mac, self._read, head + lengths, parts))
            self._read += 1
            yield kind, call, parts


def _mac(key: bytes, number: int, head: Part, parts: Iterable[Part]) -> bytes:
    """Return the MAC of a frame, the ``number``-th of its direction."""
    mac = hmac.new(key, number.to_bytes(8, "big"), "sha256")
    mac.update(head)
    for part in parts:
        mac.update(part)
    return mac.digest()


def dial(address: tuple[str, int], key: bytes, seconds: float) -> RankConnection:
    """Return a connection to a caller, whose socket blocks.

    Args:
        address: host and port of the caller.
        key: of this group of ranks.
        seconds: for each step.

    Raises:
        Disconnected: what is there does not know the key.
        OSError: nobody is there.

    """
    connection = RankConnection(socket.create_connection(address, seconds), key, accepts=False)
    connection.flush()
    connection.receive()
    connection.sock.settimeout(None)
    return connection


# Values.


class MainGlobals:
    """Stands for the globals of ``__main__``: functions that travel by value share those of the rank."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return main_globals, ()


def main_globals() -> dict[str, Any]:
    """Return the globals of this process's ``__main__``."""
    return sys.modules["__main__"].__dict__


def rebuild_tensor(
    buffer: Any,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool,  # noqa: FBT001 - pickled
) -> Any:
    """Return a tensor of the CPU with these bytes."""
    import torch

    kind = getattr(torch, dtype)
    if not memoryview(buffer).nbytes:
        flat = torch.empty(0, dtype=kind)
    else:
        # torch warns of bytes, which can't be written to.
        flat = torch.frombuffer(
            bytearray(buffer) if isinstance(buffer, bytes) else buffer, dtype=kind
        )
    return flat.reshape(shape).requires_grad_(requires_grad)


def run_cell(source: str, name: str) -> None:
    """Execute what was typed in a notebook's cell in ``__main__``; print its last value.

    Args:
        source: Python code.
        name: of the code, for tracebacks.

    """
    import ast
    import linecache

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        tree = ast.parse(source, name)
    except SyntaxError as error:
        # Without the frames of the parser.
        raise error.with_traceback(None) from None
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    variables = main_globals()
    exec(compile(tree, name, "exec"), variables)  # noqa: S102 - it is what was asked for
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), variables)  # noqa: S307
        if value is not None:
            sys.stdout.write(f"{value!r}\n")


def dumps(value: object, *, shares_main: bool = False) -> list[memoryview]:
    """Return the parts of a frame.

    Functions and classes of ``__main__`` and of notebooks are sent by value. Tensors become tensors of
    the CPU: the receiver need not use a GPU.

    Args:
        value: what is sent.
        shares_main: functions by value have the globals of the receiver's ``__main__``.

    Raises:
        Exception: whatever pickling raises.

    """
    from cloudpickle import Pickler

    class ValuePickler(Pickler):  # type: ignore[misc]
        def reducer_override(self, value: object) -> Any:
            if isinstance(value, CodeType):
                # cloudpickle leaves out where code was written; tracebacks show it.
                try:
                    return marshal.loads, (marshal.dumps(value),)
                except ValueError:
                    # Code that a program has put together may hold any constant.
                    return super().reducer_override(value)
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(value, torch.Tensor):
                return _reduced_tensor(torch, value)
            return super().reducer_override(value)

    buffers: list[pickle.PickleBuffer] = []
    file = BytesIO()
    pickler = ValuePickler(file, protocol=5, buffer_callback=buffers.append)
    # Not documented; without it each function has globals of its own.
    known = getattr(pickler, "globals_ref", None)
    if shares_main and isinstance(known, dict):
        known[id(main_globals())] = MainGlobals()
    pickler.dump(value)
    return [file.getbuffer(), *(each.raw() for each in buffers)]


def loads(parts: Sequence[Part]) -> Any:
    """Return the value of a frame; it shares the memory of the parts after the first.

    Raises:
        Exception: whatever unpickling raises.

    """
    return pickle.loads(parts[0], buffers=parts[1:])


def _reduced_tensor(torch: Any, tensor: Any) -> Any:
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if is_plain and not tensor.is_quantized:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        try:
            raw: Any = flat.view(torch.uint8).numpy()
        except (RuntimeError, TypeError):
            # No numpy, or a kind of tensor without bytes of its own.
            return NotImplemented
        in_pickle = raw.nbytes < MIN_OUT_OF_BAND
        buffer = raw.tobytes() if in_pickle else pickle.PickleBuffer(raw)
        needs_grad = tensor.requires_grad and tensor.is_leaf
        return rebuild_tensor, (buffer, str(tensor.dtype)[6:], tuple(tensor.shape), needs_grad)
    if tensor.device.type != "cpu":
        return tensor.detach().cpu().__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return NotImplemented


sys.modules.setdefault(NAME, sys.modules[__name__])
for _each in (MainGlobals, main_globals, rebuild_tensor, run_cell):
    _each.__module__ = NAME
