"""Connections between a caller and its ranks: authentication, frames and values."""

import hmac
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import clusterrun
import numpy as np
import pytest
from clusterrun.clients.python import wire
from clusterrun.clients.python.command import CommandProcess

KEY = bytes(range(32))
TIMEOUT = 20.0


class ConnectedPair:
    """Both ends of a connection between a caller and a rank."""

    def __init__(self, address: str = "127.0.0.1", source: str = "127.0.0.1") -> None:
        listener = socket.create_server((address, 0))
        dialling = socket.create_connection(
            (address, listener.getsockname()[1]), TIMEOUT, (source, 0)
        )
        accepted, _ = listener.accept()
        listener.close()
        accepted.settimeout(TIMEOUT)
        self.rank = wire.RankConnection(dialling, KEY, accepts=False)
        self.caller = wire.RankConnection(accepted, KEY, accepts=True)

    def handshake(self) -> None:
        # Each side's step waits for the other's.
        thread = threading.Thread(target=self.caller.receive)
        thread.start()
        self.rank.flush()
        ready = self.rank.receive()
        thread.join(TIMEOUT)
        assert ready is not None
        assert ready[0] == wire.READY

    def close(self) -> None:
        self.rank.sock.close()
        self.caller.sock.close()


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"], ids=["one host", "two hosts"])
def pair(request: pytest.FixtureRequest) -> Iterator[ConnectedPair]:
    """Return two pair that know each other; frames have MACs if the addresses differ."""
    pair = ConnectedPair(source=request.param)
    pair.handshake()
    yield pair
    pair.close()


@pytest.mark.parametrize(
    "parts",
    [[b""], [b"a"], [b"", b"b", b""], [bytes(range(256)) * 8, memoryview(b"xy")[1:]], [b"z"] * 200],
)
def test_frames_arrive_complete_and_in_order(pair: ConnectedPair, parts: list[bytes]) -> None:
    """In both directions."""
    for sender, receiver in ((pair.rank, pair.caller), (pair.caller, pair.rank)):
        sender.send(wire.CALL, 7, parts)
        sender.send(wire.EXIT, (1 << 32) - 1)

        assert receiver.receive() == (wire.CALL, 7, [bytearray(part) for part in parts])
        assert receiver.receive() == (wire.EXIT, (1 << 32) - 1, [bytearray()])


def test_large_frame_over_non_blocking_sockets(pair: ConnectedPair) -> None:
    part = bytes(1 << 24)
    pair.caller.sock.setblocking(False)
    pair.rank.sock.setblocking(False)
    pair.caller.queue(wire.CALL, 1, [part, b"end"])
    frame, deadline = None, time.monotonic() + TIMEOUT
    while frame is None and time.monotonic() < deadline:
        pair.caller.flush()
        frame = pair.rank.receive()

    assert frame is not None
    assert [len(each) for each in frame[2]] == [len(part), 3]
    assert not pair.caller.is_sending


def changed(raw: bytes) -> bytes:
    return raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:]


@pytest.mark.parametrize("change", [changed, lambda raw: raw + raw], ids=["changed", "sent twice"])
def test_modified_or_replayed_frame_is_detected(change: Callable[[bytes], bytes]) -> None:
    pair = ConnectedPair(source="127.0.0.2")
    pair.handshake()
    pair.rank.queue(wire.RETURNED, 1, [b"value of a rank"])
    pair.rank.sock.sendall(change(b"".join(pair.rank._out)))  # noqa: SLF001 - what is on the way

    def receive_two() -> None:
        pair.caller.receive()
        pair.caller.receive()

    with pytest.raises(wire.Disconnected, match="does not know the key"):
        receive_two()
    pair.close()


def prove_with_other_key(sock: socket.socket) -> None:
    nonce = b"n" * 32
    sock.sendall(nonce)
    theirs = sock.recv(64, socket.MSG_WAITALL)
    sock.sendall(hmac.digest(b"another", b"rank" + nonce + theirs[:32], "sha256"))


@pytest.mark.parametrize(
    "act",
    [
        prove_with_other_key,
        lambda sock: sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20),
        lambda sock: sock.sendall(bytes(64)),
        lambda sock: sock.shutdown(socket.SHUT_WR),
    ],
    ids=["another key", "HTTP", "zeros", "nothing"],
)
def test_peer_without_the_key_is_rejected(act: Callable[[socket.socket], object]) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT)
    connection = wire.RankConnection(ours, KEY, accepts=True)
    thread = threading.Thread(target=act, args=(theirs,))
    thread.start()

    with pytest.raises(wire.Disconnected):
        connection.receive()

    thread.join(TIMEOUT)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("head", [b"\0" * 9, b"\1" + b"\0" * 4 + b"\xff" * 4])
def test_invalid_header_is_rejected(pair: ConnectedPair, head: bytes) -> None:
    pair.rank.sock.sendall(head)

    with pytest.raises(wire.Disconnected, match="it sent invalid data"):
        pair.caller.receive()


@pytest.mark.usefixtures("here")
def test_unauthenticated_connections_do_not_block_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users of the host may connect to the port, send nothing, and stay."""
    unauthenticated: list[socket.socket] = []
    real_poll = CommandProcess.poll

    def poll(self: Any, seconds: float | None) -> None:
        if len(unauthenticated) < 200:
            address = self._listener.getsockname()
            unauthenticated.extend(socket.create_connection(address, TIMEOUT) for _ in range(20))
            unauthenticated[-1].sendall(b"x" * 10)
        real_poll(self, seconds)

    monkeypatch.setattr(CommandProcess, "poll", poll)

    assert clusterrun.launch(int, nproc_per_node=2) == [0, 0]

    assert len(unauthenticated) >= 20
    for each in unauthenticated:
        each.close()


# torch is imported by tests alone: each process that collects this file would wait for it.


@pytest.mark.parametrize(
    "text",
    [
        "arange(6).reshape(2, 3)",
        "arange(6).reshape(2, 3).T",
        "zeros(0, 3)",
        "tensor(1.5, dtype=bfloat16)",
        "arange(100_000, dtype=float64)",
        "tensor([True, False])",
        "tensor([1 + 2j])",
        "ones(3, requires_grad=True)",
        "nn.Parameter(ones(2))",
        "eye(3).to_sparse()",
    ],
)
def test_tensor_round_trip(text: str) -> None:
    """Received tensors are writable."""
    import torch

    value = eval(text, vars(torch))  # noqa: S307 - one of the above
    found = wire.loads([bytearray(part) for part in wire.dumps(value)])

    assert type(found) is type(value)
    assert (found.dtype, found.shape, found.requires_grad) == (
        value.dtype,
        value.shape,
        value.requires_grad,
    )
    assert torch.equal(found.detach().to_dense(), value.detach().to_dense())
    with torch.no_grad():
        assert found.is_sparse or found.zero_().numel() == value.numel()


def test_large_buffers_are_out_of_band() -> None:
    import torch

    array = np.arange(1 << 20)
    parts = wire.dumps({"array": array, "tensor": torch.from_numpy(array)})

    assert [part.nbytes for part in parts[1:]] == [array.nbytes, array.nbytes]
    assert parts[0].nbytes < 1000
    found = wire.loads([bytearray(part) for part in parts])
    found["array"][0] = 7
    assert found["array"][:2].tolist() == [7, 1]


def test_function_keeps_file_and_line() -> None:
    def fails() -> None:
        raise ValueError

    found = wire.loads(wire.dumps(fails))

    assert found.__code__.co_filename == __file__
    assert found.__code__.co_firstlineno == fails.__code__.co_firstlineno


@pytest.mark.parametrize("requires_grad", [True, False])
def test_parameter_on_gpu_stays_a_parameter(requires_grad: bool) -> None:
    import torch

    taking_the_way_of_a_gpu = {"device": torch.device("cuda")}
    kind = type("OnGpu", (torch.nn.Parameter,), taking_the_way_of_a_gpu)
    value = kind(torch.ones(2), requires_grad=requires_grad)

    found = wire.loads([bytearray(part) for part in wire.dumps(value)])

    assert (type(found), found.requires_grad) == (torch.nn.Parameter, requires_grad)
    assert found.tolist() == [1, 1]


def test_tensor_of_other_type_on_gpu_keeps_requires_grad() -> None:
    import torch

    class SubclassOnGpu(torch.Tensor):
        """A tensor that takes the way of those on a GPU, but is on the CPU when it is unpickled."""

        device = torch.device("cuda")

    value = torch.ones(2).as_subclass(SubclassOnGpu).requires_grad_()

    found = wire.loads([bytearray(part) for part in wire.dumps(value)])

    assert (type(found), found.requires_grad) == (SubclassOnGpu, True)
