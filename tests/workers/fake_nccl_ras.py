"""A double of NCCL's RAS: its client protocol, its JSON and its text, of 2.24.3 to 2.30.7.

What it writes follows src/ras/client_support.cc; 2.28.7 and 2.28.9 lack a comma.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from socketserver import StreamRequestHandler, ThreadingTCPServer

JSON_SINCE = (2, 28, 7)
COMMA_SINCE = (2, 29, 2)

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")

TEXT = """NCCL version {}+cuda12.9 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Communicators... (0.00s)
=============

Errors
======

Warnings
========

#0-0 (ae94423cfbb2ef4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
"""


class Behaviour(Enum):
    """How a server misbehaves."""

    WELL = "well"
    SILENT = "silent"
    SLOW = "slow"
    CUT_OFF = "cut off"
    HTTP = "http"
    ENDLESS_LINE = "endless line"
    CLOSES = "closes"


@dataclass
class FakeRank:
    """A rank of the communicator."""

    counts: Mapping[str, int]
    is_missing: bool = False


def job(ranks: int = 8) -> list[FakeRank]:
    """Return ranks that have all launched AllReduce 1204 times."""
    return [FakeRank({"AllReduce": 1204}) for _ in range(ranks)]


class FakeRas(ThreadingTCPServer):
    """Serves at ``address``; four ranks are on a host."""

    def __init__(self, ranks: Sequence[FakeRank], version: str, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), _Client)
        self.ranks, self.version, self.behaviour = ranks, version, behaviour
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.lines: list[str] = []
        """What clients have sent."""
        self.after_report: Callable[[], object] = lambda: None
        """Is called before the connection is closed."""
        self.closing = threading.Event()

    @property
    def queries(self) -> int:
        return sum(line.endswith("STATUS") for line in self.lines)

    def since(self, version: tuple[int, ...]) -> bool:
        return tuple(map(int, self.version.split("."))) >= version

    def json(self) -> str:
        ranks = [self._rank(number, each) for number, each in enumerate(self.ranks)]
        communicator = {
            "hash": "0xae94423cfbb2ef4a",
            "secondary_hash": "0x1:0x2",
            "size": len(ranks),
            "ranks": [it for it in ranks if "collective_counts" in it],
            "missing_ranks": [it for it in ranks if "collective_counts" not in it],
        }
        text = json.dumps({"nccl_version": self.version, "communicators": [communicator]}, indent=2)
        if self.since(COMMA_SINCE):
            return text
        return re.sub(r'("nvml_dev": 0),(\s+"status": {\s+"unresponsive")', r"\1\2", text)

    def _rank(self, number: int, rank: FakeRank) -> dict[str, object]:
        host = f"10.0.{number // 1024}.{number // 4 % 256}"
        process = {"rank": number, "host": host, "pid": 100 + number, "cuda_dev": 0, "nvml_dev": 0}
        if rank.is_missing:
            return {**process, "status": {"unresponsive": True, "considered_dead": False}}
        status = {"init_state": 0, "async_error": 0, "abort_flag": False}
        counts = {name: rank.counts.get(name, 0) for name in FUNCTIONS}
        return {**process, "status": status, "collective_counts": counts}


class _Client(StreamRequestHandler):
    server: FakeRas
    timeout = 10

    def handle(self) -> None:
        is_json = False
        if self.server.behaviour is Behaviour.SILENT:
            self.server.closing.wait(10)
        if self.server.behaviour is Behaviour.ENDLESS_LINE:
            self.wfile.write(b"x" * (1 << 16))
        for line in self.rfile:
            text = line.decode().strip()
            self.server.lines.append(text)
            match [self.server.behaviour, *text.lower().split()]:
                case [Behaviour.CLOSES, *_]:
                    return
                case [Behaviour.HTTP, *_]:
                    self.wfile.write(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n")
                case [_, "client", "protocol", _]:
                    self.wfile.write(b"SERVER PROTOCOL 2\n")
                case [_, "timeout", _]:
                    self.wfile.write(b"OK\n")
                case [_, "set", "format", format_] if self.server.since(JSON_SINCE):
                    is_json = format_ == "json"
                    self.wfile.write(b"OK\n")
                case [_, "status"] | [_, "verbose", "status"]:
                    self._report(
                        self.server.json() if is_json else TEXT.format(self.server.version)
                    )
                    return
                case _:
                    self.wfile.write(f"ERROR: Unknown command {text}\n".encode())

    def _report(self, report: str) -> None:
        is_whole = self.server.behaviour not in {Behaviour.SLOW, Behaviour.CUT_OFF}
        self.wfile.write(report.encode()[: None if is_whole else 100])
        self.server.after_report()
        if self.server.behaviour is Behaviour.SLOW:
            self.server.closing.wait(10)


@contextmanager
def serving(
    ranks: Sequence[FakeRank], version: str = "2.30.7", behaviour: Behaviour = Behaviour.WELL
) -> Iterator[FakeRas]:
    """Yield a server, which is closed at the end."""
    with FakeRas(ranks, version, behaviour) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join(10)
