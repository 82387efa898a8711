"""A double of NCCL's RAS: its client protocol, its JSON and its text, of 2.24.3 to 2.30.7.

What it writes follows src/ras/client_support.cc, the comma included that 2.28.7 and 2.28.9 lack.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

JSON_SINCE = (2, 28, 7)
COMMA_SINCE = (2, 29, 2)

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


class Behaviour(Enum):
    """How a server answers."""

    WELL = "well"
    SILENT = "silent"
    SILENT_AFTER_GREETING = "silent after greeting"
    SLOW = "slow"
    CUT_OFF = "cut off"
    HTTP = "http"
    ENDLESS_LINE = "endless line"
    CLOSES = "closes"


@dataclass
class FakeRank:
    """A rank of the communicator."""

    host: str
    pid: int
    counts: Mapping[str, int] = field(default_factory=dict)
    init_state: int = 0
    async_error: int = 0
    is_missing: bool = False
    is_dead: bool = False


def job(ranks: int = 8, per_host: int = 4, **counts: int) -> list[FakeRank]:
    """Return ranks with equal counts: of AllReduce 1204, if none are given."""
    return [
        FakeRank(f"10.0.0.{1 + n // per_host}", 100 + n, counts or {"AllReduce": 1204})
        for n in range(ranks)
    ]


class FakeRas:
    """Serves at ``address`` until it is closed."""

    def __init__(
        self,
        ranks: Sequence[FakeRank],
        version: str = "2.30.7",
        behaviour: Behaviour = Behaviour.WELL,
        before_report: Callable[[int], object] = lambda _: None,
    ) -> None:
        """``before_report`` gets the number of the query, from 1, and may change the ranks."""
        self.ranks, self.version, self.behaviour = ranks, version, behaviour
        self.before_report = before_report
        self.queries = 0
        self.lines: list[str] = []
        """What clients have sent."""
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), reuse_port=True)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            client.settimeout(10)
            try:
                self._answer(client, lines)
            except OSError:
                # The client has gone.
                return

    def _answer(self, client: socket.socket, lines: Iterator[bytes]) -> None:
        is_json = False
        if self.behaviour is Behaviour.SILENT:
            self._closing.wait(10)
            return
        if self.behaviour is Behaviour.ENDLESS_LINE:
            client.sendall(b"x" * (1 << 20))
            return
        for line in lines:
            self.lines.append(line.decode().strip())
            words = line.decode().lower().split()
            if self.behaviour is Behaviour.CLOSES:
                return
            if self.behaviour is Behaviour.HTTP:
                client.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n")
                return
            match words:
                case ["client", "protocol", _]:
                    client.sendall(b"SERVER PROTOCOL 2\n")
                    if self.behaviour is Behaviour.SILENT_AFTER_GREETING:
                        self._closing.wait(10)
                        return
                case ["timeout", _]:
                    client.sendall(b"OK\n")
                case ["set", "format", format_] if self._since(JSON_SINCE):
                    is_json = format_ == "json"
                    client.sendall(b"OK\n")
                case ["status"] | ["verbose", "status"]:
                    self._report(client, is_json=is_json)
                    return
                case _:
                    client.sendall(f"ERROR: Unknown command {line.decode().strip()}\n".encode())

    def _report(self, client: socket.socket, *, is_json: bool) -> None:
        self.queries += 1
        self.before_report(self.queries)
        report = (self.json() if is_json else self.text()).encode()
        if self.behaviour is Behaviour.SLOW:
            client.sendall(report[:100])
            self._closing.wait(10)
        elif self.behaviour is Behaviour.CUT_OFF:
            client.sendall(report[: len(report) // 2])
        else:
            client.sendall(report)

    def _since(self, version: tuple[int, ...]) -> bool:
        return tuple(map(int, self.version.split("."))) >= version

    def json(self) -> str:
        """Return the report as NCCL formats it: by hand."""
        here = [self._rank(n, it) for n, it in enumerate(self.ranks) if not it.is_missing]
        gone = [self._missing(n, it) for n, it in enumerate(self.ranks) if it.is_missing]
        return (
            f'{{\n  "nccl_version": "{self.version}",\n  "cuda_runtime_version": 13000,\n'
            '  "cuda_driver_version": 13000,\n  "timestamp": "2026-11-28 05:00:00",\n'
            '  "communicators_count": 1,\n  "communicators": [\n'
            '    {\n      "hash": "0xae94423cfbb2ef4a",\n      "secondary_hash": "0x1:0x2",\n'
            f'      "size": {len(self.ranks)},\n      "ranks_count": {len(here)},\n'
            f'      "missing_ranks_count": {len(gone)},\n      "ranks": [\n{_listed(here)}\n      ],\n'
            f'      "missing_ranks": [\n{_listed(gone)}\n      ]\n    }}\n  ],\n'
            '  "ras": {\n    "collection_time_sec": 0.001,\n    "timeouts_count": 0\n  }\n}\n'
        )

    def _rank(self, number: int, rank: FakeRank) -> str:
        counts = ",\n".join(f'            "{it}": {rank.counts.get(it, 0)}' for it in FUNCTIONS)
        return (
            f"{_beginning(number, rank)},\n"
            '          "status": {\n'
            f'            "init_state": {rank.init_state},\n'
            f'            "async_error": {rank.async_error},\n'
            '            "finalize_called": false,\n            "destroy_flag": false,\n'
            '            "abort_flag": false\n          },\n'
            f'          "collective_counts": {{\n{counts}\n          }}\n        }}'
        )

    def _missing(self, number: int, rank: FakeRank) -> str:
        comma = "," if self._since(COMMA_SINCE) else ""
        return (
            f"{_beginning(number, rank)}{comma}\n"
            '          "status": {\n            "unresponsive": true,\n'
            f'            "considered_dead": {str(rank.is_dead).lower()}\n          }}\n        }}'
        )

    def text(self) -> str:
        """Return the report of a version without JSON."""
        return (
            f"NCCL version {self.version}+cuda12.9 compiled with CUDA 12.9\n"
            "CUDA runtime version 12090, driver version 13000\n\nJob summary\n===========\n\n"
            "  Nodes  Processes         GPUs\n      2          4            4\n\n"
            "Communicators... (0.00s)\n=============\n\n"
            "Errors\n======\n\nWarnings\n========\n\n"
            "#0-0 (ae94423cfbb2ef4a) MISMATCH\n"
            "  Communicator ranks have different AllReduce operation counts\n"
            "  7 ranks have launched up to operation 1204\n"
            "  Rank 7 has launched up to operation 1203 -- GPU 3 managed by process 107 on node"
            " 10.0.0.2\n\n"
        )


def _beginning(number: int, rank: FakeRank) -> str:
    return (
        f'        {{\n          "rank": {number},\n          "host": "{rank.host}",\n'
        f'          "pid": {rank.pid},\n          "cuda_dev": 0,\n          "nvml_dev": 0'
    )


def _listed(objects: Sequence[str]) -> str:
    return ",\n".join(objects)


@contextmanager
def serving(
    ranks: Sequence[FakeRank],
    version: str = "2.30.7",
    behaviour: Behaviour = Behaviour.WELL,
    before_report: Callable[[int], object] = lambda _: None,
) -> Iterator[FakeRas]:
    """Yield a server, which is closed at the end."""
    server = FakeRas(ranks, version, behaviour, before_report)
    try:
        yield server
    finally:
        server.close()
