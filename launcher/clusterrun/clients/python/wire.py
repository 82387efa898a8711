"""The protocol between a caller and its ranks: authenticated connections, frames, and pickled values.

Ranks import this module in the workers' interpreter (Python 3.8 or newer), so it needs only the standard
library and cloudpickle. A rank dials. Before both sides have proved that they know the key, they read
96 bytes and unpickle nothing:

    rank to caller     nonce (32 bytes)
    caller to rank     nonce (32), HMAC-SHA256(key, "caller" + both nonces)
    rank to caller     HMAC-SHA256(key, "rank" + both nonces)

Frames follow: ``kind 1 | call 4 | parts 4 | length of each part 8 | parts [| MAC 32]``. The first part
is a pickle, the others are its out-of-band buffers (PEP 574). Frames have MACs unless both ends are on
the same host, where no other user can write to the connection.
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

PICKLE_MODULE = "clusterrun_wire"
"""The name of this module in pickles, because ranks may not have the package."""

READY, HELLO, CALL, LAST_CALL, RETURNED, RAISED, INTERRUPT, ABORT, EXIT = range(9)
"""Kinds of frames. ``READY`` is never sent; ``receive`` returns it once the other side is authenticated."""

MAX_PARTS = 1 << 20
MIN_OUT_OF_BAND = 1 << 12
"""Bytes of a tensor; the data of smaller tensors is in the pickle."""

MAX_BUFFERS_PER_CALL = 64
"""The number of buffers in one sendmsg call."""

_NONCE = _MAC = 32
_HEADER = struct.Struct(">BII")


class Disconnected(Exception):
    """The other side has closed the connection, does not know the key, or sends something else."""


class RankConnection:
    """A connection over a blocking or non-blocking socket; the caller accepts, the rank dials."""

    def __init__(self, sock: socket.socket, key: bytes, *, accepts: bool) -> None:
        """Begin the handshake."""
        self.sock = sock
        self._key = key
        self._send_key = self._receive_key = b""
        """The MAC key of each direction, b"" if frames have no MACs."""
        self._frames_sent = self._frames_received = 0
        self._out: list[memoryview] = []
        self._nonce = os.urandom(_NONCE)
        if not accepts:
            self._queue_bytes(self._nonce)
        self._parser = self._accept_steps() if accepts else self._dial_steps()
        self._buffer = self._next_buffer()

    def fileno(self) -> int:
        return self.sock.fileno()

    def close(self) -> None:
        """Close the socket, and break the reference cycle with the generator.

        A forked worker whose garbage contains sockets has to finalize Python, which frees every object and
        takes a second of CPU time with torch.
        """
        self.sock.close()
        self._parser.close()
        del self._parser

    # Sending.

    def queue(self, kind: int, call: int, parts: Sequence[Part] = (b"",)) -> None:
        """Queue a frame for ``flush``; ``call`` is the number of the call that it belongs to."""
        views = [memoryview(part).cast("B") for part in parts]
        header = _HEADER.pack(kind, call, len(views))
        header += struct.pack(f">{len(views)}Q", *map(len, views))
        self._queue_bytes(header, *views)
        if self._send_key:
            self._queue_bytes(_mac(self._send_key, self._frames_sent, header, views))
        self._frames_sent += 1

    @property
    def is_sending(self) -> bool:
        """Whether queued data remains."""
        return bool(self._out)

    def flush(self) -> None:
        """Send what the socket accepts; if it blocks, everything.

        Raises:
            Disconnected: the other side is gone.

        """
        while self._out:
            try:
                sent = self.sock.sendmsg(self._out[:MAX_BUFFERS_PER_CALL])
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
        """Return the next frame, or None if a non-blocking socket has no complete frame yet.

        Raises:
            Disconnected: the other side is gone, or violates the protocol.

        """
        while True:
            try:
                count = self.sock.recv_into(self._buffer)
            except BlockingIOError:
                return None
            except OSError as error:
                raise Disconnected(str(error)) from None
            if not count:
                raise Disconnected("it has closed the connection")
            self._buffer = self._buffer[count:]
            if not self._buffer:
                item = next(self._parser)
                if not isinstance(item, memoryview):
                    self._buffer = self._next_buffer()
                    return item
                self._buffer = item

    def _next_buffer(self) -> memoryview:
        item = next(self._parser)
        if not isinstance(item, memoryview):
            raise AssertionError("two frames without a byte between them")  # noqa: TRY004
        return item

    def _accept_steps(self) -> Generator[memoryview | Frame, None, None]:
        nonce = bytearray(_NONCE)
        yield memoryview(nonce)
        nonces = bytes(nonce) + self._nonce
        self._queue_bytes(self._nonce, self._proof(b"caller", nonces))
        self.flush()
        proof = bytearray(_MAC)
        yield memoryview(proof)
        self._check_mac(proof, self._proof(b"rank", nonces))
        self._choose_mac_keys(b"caller", b"rank", nonces)
        yield READY, 0, []
        yield from self._frame_steps()

    def _dial_steps(self) -> Generator[memoryview | Frame, None, None]:
        answer = bytearray(_NONCE + _MAC)
        yield memoryview(answer)
        nonces = self._nonce + bytes(answer[:_NONCE])
        self._check_mac(answer[_NONCE:], self._proof(b"caller", nonces))
        self._queue_bytes(self._proof(b"rank", nonces))
        self.flush()
        self._choose_mac_keys(b"rank", b"caller", nonces)
        yield READY, 0, []
        yield from self._frame_steps()

    def _proof(self, side: bytes, nonces: bytes) -> bytes:
        return hmac.digest(self._key, side + nonces, "sha256")

    def _check_mac(self, given: bytearray, expected: bytes) -> None:
        if not hmac.compare_digest(bytes(given), expected):
            raise Disconnected("it does not know the key")

    def _choose_mac_keys(self, ours: bytes, theirs: bytes, nonces: bytes) -> None:
        """Choose the key of each direction, if frames have MACs."""
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.sock.getsockname()[0] != self.sock.getpeername()[0]:
            self._send_key = self._proof(b"frames of " + ours, nonces)
            self._receive_key = self._proof(b"frames of " + theirs, nonces)

    def _frame_steps(self) -> Generator[memoryview | Frame, None, None]:
        while True:
            header = bytearray(_HEADER.size)
            yield memoryview(header)
            kind, call, count = _HEADER.unpack(header)
            if not 0 < count <= MAX_PARTS:
                raise Disconnected("it sent invalid data")
            lengths = bytearray(8 * count)
            yield memoryview(lengths)
            try:
                parts = [bytearray(length) for length in struct.unpack(f">{count}Q", lengths)]
            except (MemoryError, OverflowError):
                raise Disconnected("it sends more than there is memory for") from None
            for part in parts:
                if part:
                    yield memoryview(part)
            if self._receive_key:
                given = bytearray(_MAC)
                yield memoryview(given)
                self._check_mac(
                    given, _mac(self._receive_key, self._frames_received, header + lengths, parts)
                )
            self._frames_received += 1
            yield kind, call, parts


def _mac(key: bytes, number: int, header: Part, parts: Iterable[Part]) -> bytes:
    """Return the MAC of frame ``number`` of its direction."""
    mac = hmac.new(key, number.to_bytes(8, "big"), "sha256")
    mac.update(header)
    for part in parts:
        mac.update(part)
    return mac.digest()


def dial(address: tuple[str, int], key: bytes, seconds: float) -> RankConnection:
    """Return a connection to a caller, with a blocking socket.

    Args:
        address: host and port of the caller.
        key: of this group of ranks.
        seconds: the timeout of each step.

    Raises:
        Disconnected: the other side does not know the key.
        OSError: the address can't be reached.

    """
    connection = RankConnection(socket.create_connection(address, seconds), key, accepts=False)
    connection.flush()
    connection.receive()
    connection.sock.settimeout(None)
    return connection


# Values.


class MainGlobals:
    """Pickles as the globals of the receiver's ``__main__``, which functions sent by value then share."""

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
    """Return a CPU tensor with these bytes."""
    import torch

    kind = getattr(torch, dtype)
    if not memoryview(buffer).nbytes:
        flat = torch.empty(0, dtype=kind)
    else:
        # torch warns if the buffer is read-only, as bytes are.
        flat = torch.frombuffer(
            bytearray(buffer) if isinstance(buffer, bytes) else buffer, dtype=kind
        )
    return flat.reshape(shape).requires_grad_(requires_grad)


def run_cell(source: str, name: str) -> None:
    """Execute a notebook cell in ``__main__``; print the value of its last line.

    Args:
        source: Python code.
        name: the file name of the code in tracebacks.

    """
    import ast
    import linecache

    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    try:
        tree = ast.parse(source, name)
    except SyntaxError as error:
        # Drop the frames of the parser.
        raise error.with_traceback(None) from None
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    variables = main_globals()
    # Without dont_inherit, this file's __future__ import would apply to the cell.
    exec(compile(tree, name, "exec", dont_inherit=True), variables)  # noqa: S102 - it is what was asked for
    if isinstance(last, ast.Expr):
        code = compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
        value = eval(code, variables)  # noqa: S307
        if value is not None:
            sys.stdout.write(f"{value!r}\n")


def dumps(value: object, *, shares_main: bool = False) -> list[memoryview]:
    """Return the parts of a frame with a pickled value.

    Functions and classes of ``__main__`` and of notebooks are sent by value. Tensors become CPU tensors,
    because the receiver may not have a GPU.

    Args:
        value: the value to send.
        shares_main: whether functions sent by value use the globals of the receiver's ``__main__``.

    Raises:
        Exception: whatever pickling raises.

    """
    from cloudpickle import Pickler, register_pickle_by_value

    main = sys.modules["__main__"]
    if main.__name__ == "__mp_main__":
        # In a child that multiprocessing has spawned, cloudpickle takes it for a module that ranks have.
        register_pickle_by_value(main)

    class ValuePickler(Pickler):  # type: ignore[misc]
        def reducer_override(self, value: object) -> Any:
            if isinstance(value, CodeType):
                # cloudpickle drops line numbers, which tracebacks show.
                try:
                    return marshal.loads, (marshal.dumps(value),)
                except ValueError:
                    # Generated code may contain constants of any type.
                    return super().reducer_override(value)
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(value, torch.Tensor):
                return _reduced_tensor(torch, value)
            return super().reducer_override(value)

    buffers: list[pickle.PickleBuffer] = []
    file = BytesIO()
    pickler = ValuePickler(file, protocol=5, buffer_callback=buffers.append)
    # Not documented. Without it, each function has its own globals.
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
    needs_grad = tensor.requires_grad and tensor.is_leaf
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if is_plain and not tensor.is_quantized:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        try:
            raw: Any = flat.view(torch.uint8).numpy()
        except (RuntimeError, TypeError):
            # numpy is missing, or the tensor has no storage of its own.
            return NotImplemented
        in_pickle = raw.nbytes < MIN_OUT_OF_BAND
        buffer = raw.tobytes() if in_pickle else pickle.PickleBuffer(raw)
        return rebuild_tensor, (buffer, str(tensor.dtype)[6:], tuple(tensor.shape), needs_grad)
    # torch pickles the data of a Parameter as another tensor.
    if tensor.device.type != "cpu" and not isinstance(tensor, torch.nn.Parameter):
        moved = tensor.detach().cpu().requires_grad_(needs_grad)
        return moved.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    return NotImplemented


sys.modules.setdefault(PICKLE_MODULE, sys.modules[__name__])
for _each in (MainGlobals, main_globals, rebuild_tensor, run_cell):
    _each.__module__ = PICKLE_MODULE
