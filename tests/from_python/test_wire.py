"""Connections between a caller and its ranks: who is let in, frames, values."""

import hmac
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import clusterrun
import numpy as np
import pytest
import torch
from clusterrun.clients.python import wire
from clusterrun.clients.python.command import CommandProcess

KEY = bytes(range(32))
PATIENCE = 20.0


class Ends:
    """A caller's and a rank's end of one connection, both on this thread."""

    def __init__(self, address: str = "127.0.0.1", source: str = "127.0.0.1") -> None:
        listener = socket.create_server((address, 0))
        dialling = socket.create_connection(
            (address, listener.getsockname()[1]), PATIENCE, (source, 0)
        )
        accepted, _ = listener.accept()
        listener.close()
        accepted.settimeout(PATIENCE)
        self.rank = wire.RankConnection(dialling, KEY, accepts=False)
        self.caller = wire.RankConnection(accepted, KEY, accepts=True)

    def shake_hands(self) -> None:
        # Each side's step waits for the other's.
        thread = threading.Thread(target=self.caller.receive)
        thread.start()
        self.rank.flush()
        ready = self.rank.receive()
        thread.join(PATIENCE)
        assert ready is not None
        assert ready[0] == wire.READY

    def close(self) -> None:
        self.rank.sock.close()
        self.caller.sock.close()


@pytest.fixture(params=["127.0.0.1", "127.0.0.2"], ids=["one host", "two hosts"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Return two ends that know each other; frames have MACs if the addresses differ."""
    made = Ends(source=request.param)
    made.shake_hands()
    yield made
    made.close()


@pytest.mark.parametrize(
    "parts",
    [[b""], [b"a"], [b"", b"b", b""], [bytes(range(256)) * 8, memoryview(b"xy")[1:]], [b"z"] * 200],
)
def test_frames_arrive_in_order(ends: Ends, parts: list[bytes]) -> None:
    """In both directions, whole and apart from each other."""
    for sender, receiver in ((ends.rank, ends.caller), (ends.caller, ends.rank)):
        sender.send(wire.CALL, 7, parts)
        sender.send(wire.LEAVE, (1 << 32) - 1)

        assert receiver.receive() == (wire.CALL, 7, [bytearray(part) for part in parts])
        assert receiver.receive() == (wire.LEAVE, (1 << 32) - 1, [bytearray()])


def test_a_large_frame_takes_several_steps(ends: Ends) -> None:
    """A socket that does not block takes what it can."""
    part = bytes(1 << 24)
    ends.caller.sock.setblocking(False)
    ends.rank.sock.setblocking(False)
    ends.caller.queue(wire.CALL, 1, [part, b"end"])
    frame, deadline = None, time.monotonic() + PATIENCE
    while frame is None and time.monotonic() < deadline:
        ends.caller.flush()
        frame = ends.rank.receive()

    assert frame is not None
    assert [len(each) for each in frame[2]] == [len(part), 3]
    assert not ends.caller.is_sending


def changed(raw: bytes) -> bytes:
    return raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:]


@pytest.mark.parametrize("change", [changed, lambda raw: raw + raw], ids=["changed", "sent twice"])
def test_an_attacker_between_two_nodes(change: Callable[[bytes], bytes]) -> None:
    """Between hosts, what was changed or repeated is found."""
    ends = Ends(source="127.0.0.2")
    ends.shake_hands()
    ends.rank.queue(wire.RETURNED, 1, [b"value of a rank"])
    ends.rank.sock.sendall(change(b"".join(ends.rank._out)))  # noqa: SLF001 - what is on the way

    def receive_two() -> None:
        ends.caller.receive()
        ends.caller.receive()

    with pytest.raises(wire.Disconnected, match="does not know the key"):
        receive_two()
    ends.close()


def other_key(sock: socket.socket) -> None:
    nonce = b"n" * 32
    sock.sendall(nonce)
    theirs = sock.recv(64, socket.MSG_WAITALL)
    sock.sendall(hmac.digest(b"another", b"rank" + nonce + theirs[:32], "sha256"))


@pytest.mark.parametrize(
    "says",
    [
        other_key,
        lambda sock: sock.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20),
        lambda sock: sock.sendall(bytes(64)),
        lambda sock: sock.shutdown(socket.SHUT_WR),
    ],
    ids=["another key", "HTTP", "zeros", "nothing"],
)
def test_who_does_not_know_the_key(says: Callable[[socket.socket], object]) -> None:
    """Nothing of theirs is unpickled."""
    ours, theirs = socket.socketpair()
    ours.settimeout(PATIENCE)
    connection = wire.RankConnection(ours, KEY, accepts=True)
    thread = threading.Thread(target=says, args=(theirs,))
    thread.start()

    with pytest.raises(wire.Disconnected):
        connection.receive()

    thread.join(PATIENCE)
    ours.close()
    theirs.close()


@pytest.mark.parametrize("head", [b"\0" * 9, b"\1" + b"\0" * 4 + b"\xff" * 4])
def test_what_is_not_a_frame(ends: Ends, head: bytes) -> None:
    ends.rank.sock.sendall(head)

    with pytest.raises(wire.Disconnected, match="it sends something else"):
        ends.caller.receive()


@pytest.mark.usefixtures("here")
def test_strangers_keep_no_rank_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other users of the host find the port: they may connect, say nothing, and stay."""
    strangers: list[socket.socket] = []
    start = CommandProcess.turn

    def turn(self: Any, seconds: float | None) -> None:
        if len(strangers) < 200:
            address = self._listener.getsockname()
            strangers.extend(socket.create_connection(address, PATIENCE) for _ in range(20))
            strangers[-1].sendall(b"x" * 10)
        start(self, seconds)

    monkeypatch.setattr(CommandProcess, "turn", turn)

    assert clusterrun.launch(int, nproc_per_node=2) == [0, 0]

    assert len(strangers) >= 20
    for each in strangers:
        each.close()


VALUES = [
    torch.arange(6).reshape(2, 3),
    torch.arange(6).reshape(2, 3).T,
    torch.zeros(0, 3),
    torch.tensor(1.5, dtype=torch.bfloat16),
    torch.arange(100_000, dtype=torch.float64),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j]),
    torch.ones(3, requires_grad=True),
    torch.nn.Parameter(torch.ones(2)),
    torch.eye(3).to_sparse(),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda it: f"{it.dtype} {tuple(it.shape)}")
def test_tensors(value: torch.Tensor) -> None:
    """They can be written to, on the other side."""
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


def test_large_buffers_are_not_copied_into_the_pickle() -> None:
    array = np.arange(1 << 20)
    parts = wire.dumps({"array": array, "tensor": torch.from_numpy(array)})

    assert [part.nbytes for part in parts[1:]] == [array.nbytes, array.nbytes]
    assert parts[0].nbytes < 1000
    found = wire.loads([bytearray(part) for part in parts])
    found["array"][0] = 7
    assert found["array"][:2].tolist() == [7, 1]


def test_functions_keep_their_files_and_lines() -> None:
    def fails() -> None:
        raise ValueError

    found = wire.loads(wire.dumps(fails))

    assert found.__code__.co_filename == __file__
    assert found.__code__.co_firstlineno == fails.__code__.co_firstlineno
