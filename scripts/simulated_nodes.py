"""Nodes of a job without workers: one real node 0, and others, many of them in one process.

Node 0 runs what its agent runs, in a process of its own. Each of the others has a real connection from
an address of its own, makes the real handshake, reads with the real decoder, and sends what real agents
send, when they send it. They save a process for each node, and its start.
"""

import gc
import os
import select
import socket
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from clusterrun.bounds import GlobalRank, LocalRank
from clusterrun.job.values import LOOPBACK
from clusterrun.loop import Loop
from clusterrun.network.channel import FROM_COORDINATOR, Channel
from clusterrun.network.handshake import member_handshake, packed_address
from clusterrun.network.joining_node import JoinContext, JoiningNode
from clusterrun.network.membership import Membership
from clusterrun.planning.plan import World
from clusterrun.policy.events import CoordinatorSent, Event
from clusterrun.policy.leases import MemberLease
from clusterrun.policy.messages import (
    DatedResult,
    Done,
    FirstFailure,
    Heartbeat,
    HeartbeatAnswer,
    Hello,
    KeepWaiting,
    NextAttempt,
    Stop,
    Verdict,
    WorldFormed,
)
from clusterrun.policy.outcome import Exited, ExitStatus, Killed, WorkerResult
from clusterrun.policy.results import bounded
from clusterrun.policy.settings import RendezvousSettings, heartbeat_rhythm, rendezvous_settings
from clusterrun.processes import raise_descriptor_limit
from clusterrun.run.launch import wait_for_world
from clusterrun.run.preview import described
from msgspec.msgpack import encode

JOIN, FAIL, LOSE, MEASURE, LEASES = "join", "fail", "lose", "measure", "leases"
"""Orders of the benchmark to its processes."""

SILENT = 15.0
"""``--heartbeat-timeout``."""

SPARE_DESCRIPTORS = 100

SECONDS_TO_JOIN = 120.0
"""After which node 0 ends, whoever has started it."""

WORKERS = 8
"""Of each node."""

LOST = 20
"""Nodes that are lost, all of the first process."""

SECONDS_OF_LOSSES = 1.0
"""From the first to the last."""

ATTEMPTS = 2 + LOST
"""The most that a job with so many losses has."""

TAIL = "Traceback (most recent call last):\n" + 5 * '  File "train.py", line 12, in <module>\n'


MAX_UNANSWERED = 1000
"""Pending connections per process, so that all fit into node 0's backlog (4096). The kernel retries a
dropped connection only after seconds."""


class SimulatedNode:
    """A member, and the times of its events."""

    def __init__(self, rank: int, nodes: int, attempts: int, silent: float) -> None:
        """Encode all messages in advance, because a real node has its own CPUs for that."""
        self.joined_at = self.stopped_at = self.ended_at = 0.0
        self.failed_at = 0.0
        """When it reported its worker's failure; 0 if it reported none."""
        self.placed_at = 0.0
        """When it got its rank in the newest world."""
        self.lost_at = 0.0
        """When it was lost; 0 if it was not."""
        self.shortest_lease = float("inf")
        """Seconds that its lease had to run when it was renewed, at least."""
        self._lease = MemberLease(heartbeat_rhythm(nodes, silent))
        self._address = f"127.1.{rank >> 8}.{rank & 255}"
        self._hello = encode(_hello(rank, nodes))
        self._failing = encode(bounded(FirstFailure(0, _fate(rank, Exited(1)), None)))
        self._done = _done_bodies(rank, range(attempts))
        self.attempt = 0
        self._rank = rank

    def call(self, port: int) -> None:
        """Connect to node 0.

        From an address of its own, as a real node: one address has only 28,000 ports, and from the
        middle on the kernel takes longer and longer to find a free one.
        """
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.bind((self._address, 0))
        sock.setblocking(False)
        with suppress(BlockingIOError):
            sock.connect((LOOPBACK, port))
        handshake = member_handshake(b"", packed_address((LOOPBACK, port)))
        self.connection = Channel(FROM_COORDINATOR, sock, handshake)

    def read(self) -> None:
        """Read all that has come, and answer as an agent does."""
        connection = self.connection
        was_ready = connection.is_ready
        messages = connection.receive()
        now = time.monotonic()
        if connection.is_ready and not was_ready:
            connection.send_body(self._hello)
        for message in messages:
            match message:
                case KeepWaiting():
                    self.joined_at = now
                case WorldFormed(world):
                    self.joined_at = self.joined_at or now
                    self._take_rank(world, now)
                case NextAttempt(world):
                    self._take_rank(world, now)
                case Stop():
                    self.stopped_at = now
                    connection.send_body(self._done[self.attempt])
                case HeartbeatAnswer(sent):
                    if self._lease.ends:
                        left = self._lease.ends - now
                        self.shortest_lease = min(self.shortest_lease, left)
                    self._lease.answered(sent)
                case Verdict():
                    self.ended_at = now
                    connection.close()
                case _:
                    continue

    def beat(self) -> None:
        if self.connection.end is None:
            self.connection.send(Heartbeat(time.monotonic()))

    def lose(self) -> None:
        """End, as an agent that is killed: the kernel closes its connection.

        A connection with unread input would be reset, and no reset is known to be an end. A real
        agent reads at once; this process, which is a thousand of them, is behind.
        """
        self.read()
        self.lost_at = time.monotonic()
        self.connection.close()

    def _take_rank(self, world: World, now: float) -> None:
        self.placed_at, self.attempt = now, world.attempt
        if world.node_rank != self._rank:
            # A spare that has replaced a node.
            self._rank = world.node_rank
            self._done = _done_bodies(self._rank, range(len(self._done)))

    def fail(self) -> None:
        """Report that the worker has failed."""
        self.failed_at = time.monotonic()
        self.connection.send_body(self._failing)


class SimulatedNodes:
    """The nodes of one process, on one epoll."""

    def __init__(
        self, ranks: range, nodes: int, port: int, attempts: int = 1, silent: float = SILENT
    ) -> None:
        self.nodes = [SimulatedNode(rank, nodes, attempts, silent) for rank in ranks]
        self.epoll = select.epoll()
        self._port = port
        self._interval = heartbeat_rhythm(nodes, silent).interval
        self._by_descriptor: dict[int, SimulatedNode] = {}
        self._unanswered: set[int] = set()
        self._writing: set[int] = set()
        self._to_lose: list[SimulatedNode] = []
        self._next_loss = 0.0

    def join(self) -> None:
        """Let all nodes call node 0, and wait until each knows its ranks."""
        for node in self.nodes:
            self._call(node)
            while len(self._unanswered) >= MAX_UNANSWERED:
                self.turn(time.monotonic() + SECONDS_TO_JOIN)
        for node in self.nodes:
            while not node.joined_at:
                self.turn(time.monotonic() + SECONDS_TO_JOIN)

    def _call(self, node: SimulatedNode) -> None:
        node.call(self._port)
        self._by_descriptor[node.connection.fileno()] = node
        self._unanswered.add(node.connection.fileno())
        # Until it is connected, it has its opening to send.
        self.epoll.register(node.connection, select.EPOLLIN | select.EPOLLOUT)
        self._writing.add(node.connection.fileno())

    def turn(self, until: float) -> None:
        """Serve the connections that are ready; wait until then for the first."""
        for descriptor, _ in self.epoll.poll(max(0.0, until - time.monotonic()), 256):
            node = self._by_descriptor.get(descriptor)
            if node is None:
                continue
            node.read()
            if node.connection.is_ready:
                self._unanswered.discard(descriptor)
            if node.connection.end is not None:
                del self._by_descriptor[descriptor]
                self._unanswered.discard(descriptor)
                node.connection.close()
                if not node.joined_at:
                    # Refused because this process was too slow: real nodes call again, too.
                    self._call(node)
            elif (writes := node.connection.wants_write) != (descriptor in self._writing):
                self._writing ^= {descriptor}
                self.epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if writes else 0))

    def run(self, pipe: Pipe) -> None:
        """Send heartbeats until the job has ended; let one node fail when the benchmark asks."""
        self.epoll.register(pipe, select.EPOLLIN)
        beats, began = 0, time.monotonic()
        while self._by_descriptor:
            next_beat = began + beats * self._interval / len(self.nodes)
            while next_beat <= time.monotonic():
                self.nodes[beats % len(self.nodes)].beat()
                beats += 1
                next_beat = began + beats * self._interval / len(self.nodes)
            self.turn(next_beat)
            if pipe.poll():
                self._obey(pipe.recv(), pipe)
            while self._to_lose and time.monotonic() >= self._next_loss:
                self._next_loss += SECONDS_OF_LOSSES / LOST
                node = self._to_lose.pop()
                del self._by_descriptor[node.connection.fileno()]
                node.lose()

    def _obey(self, order: str, pipe: Pipe) -> None:
        match order:
            case "fail":
                self.nodes[0].fail()
            case "lose":
                self._to_lose, self._next_loss = self.nodes[:LOST], time.monotonic()
            case "leases":
                gone = sum(node.connection.end is not None for node in self.nodes)
                pipe.send((min(node.shortest_lease for node in self.nodes), gone))
            case _:
                lost = max(node.lost_at for node in self.nodes)
                placed = [(it.attempt, it.placed_at) for it in self.nodes if not it.lost_at]
                pipe.send((lost, placed))


def simulate_losses(
    pipe: Pipe, ranks: range, nodes: int, port: int, silent: float = SILENT
) -> None:
    """Simulate these nodes, of which some are lost when the benchmark asks; until it is killed.

    Sends None once it is ready; when the last node joined; and, when it is asked, when the last one
    was lost, and for each of the others its attempt and when it learnt its place there.
    """
    raise_descriptor_limit(len(ranks) + SPARE_DESCRIPTORS)
    gc.disable()
    with suppress(EOFError, BrokenPipeError):
        simulated = SimulatedNodes(ranks, nodes, port, ATTEMPTS, silent)
        pipe.send(None)
        pipe.recv()
        simulated.join()
        pipe.send(max(node.joined_at for node in simulated.nodes))
        simulated.run(pipe)


def simulate_nodes(pipe: Pipe, ranks: range, nodes: int, port: int) -> None:
    """Simulate these nodes.

    Sends None once it is ready; when the last node joined; and at the end when the first one failed,
    when each of the others learnt of it, and when the last one learnt why the job had ended.
    """
    raise_descriptor_limit(len(ranks) + SPARE_DESCRIPTORS)
    # A real node has only its own objects to search.
    gc.disable()
    with suppress(EOFError, BrokenPipeError):
        simulated = SimulatedNodes(ranks, nodes, port)
        pipe.send(None)
        pipe.recv()
        simulated.join()
        pipe.send(max(node.joined_at for node in simulated.nodes))
        simulated.run(pipe)
        failed = simulated.nodes[0].failed_at
        stops = [node.stopped_at for node in simulated.nodes if not node.failed_at]
        pipe.send((failed, stops, max(node.ended_at for node in simulated.nodes)))


def node_zero(pipe: Pipe, nodes: int, port: int, spares: int = 0, silent: float = SILENT) -> None:
    """Be node 0. Sends what this process uses when others can call, when it is asked, at the end."""
    gc.disable()
    loop = Loop[Event](time.monotonic)
    node = JoiningNode(
        job_terms(nodes, port, spares, silent),
        _hello(0, nodes),
        b"",
        JoinContext(sys.stderr.write),
    )
    membership = Membership(node, loop)
    pipe.send(measured())
    wait_for_world(membership, loop, None)
    # As in run.launch.
    gc.freeze()
    gc.enable()
    with suppress(EOFError, BrokenPipeError):
        _supervise(membership, loop, pipe)


def _supervise(membership: Membership, loop: Loop[Event], pipe: Pipe) -> None:
    """Do what an agent does whose only worker ends as soon as it is stopped."""

    def answer(_now: float) -> tuple[()]:
        pipe.recv()
        pipe.send(measured())
        return ()

    loop.watch(pipe.fileno(), answer)
    over, attempt = False, 0
    while not over:
        match loop.next_event():
            case CoordinatorSent(NextAttempt(world)):
                attempt = world.attempt
            case CoordinatorSent(Stop()):
                loop.add_first(membership.send(_done(attempt, 0)))
            case CoordinatorSent(Verdict()):
                over = True
    loop.forget(pipe.fileno())
    membership.leave()
    pipe.send(measured())


def measured() -> tuple[int, float]:
    """Return the memory of this process in bytes, without mapped files, and its CPU seconds.

    The share of libraries in it would shrink as soon as other processes use them (PSS).
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return held, time.process_time()


def job_terms(nodes: int, port: int, spares: int = 0, silent: float = SILENT) -> RendezvousSettings:
    """Return what ``clusterrun --nnodes NODES --master-addr 127.0.0.1`` makes of its options.

    ``spares`` are among the nodes.
    """
    options = {
        "nnodes": str(nodes - spares),
        "spares": str(spares),
        "node_rank": "0",
        "master_addr": LOOPBACK,
        "master_port": str(port),
        "rdzv_timeout": f"{SECONDS_TO_JOIN:g}",
        "heartbeat_timeout": f"{silent:g}",
        "run_id": "7f3a9c21",
    }
    return rendezvous_settings(described(options, {}).job)


def _hello(rank: int, nodes: int) -> Hello:
    return Hello(
        identity=os.urandom(8).hex(),
        host=f"gpu-{rank:04}",
        pid=10_000 + rank,
        user_id=os.getuid(),
        workers=WORKERS,
        rank=rank,
        run_id="",
        at=time.monotonic(),
        must={
            "nnodes": str(nodes),
            "max_restarts": "0",
            "no_restart_exit_codes": "none",
            "no_fail_fast": "no",
            "heartbeat_timeout": "15",
            "hang_timeout": "0",
            "on_hang": "report",
        },
        should={"script": "train.py", "arguments": "--lr 1e-4", "python": "3.12", "torch": "2.9"},
    )


def _done_bodies(node_rank: int, attempts: range) -> list[bytes]:
    """Return what a node sends when its workers have been stopped, for each of these attempts."""
    return [encode(bounded(_done(attempt, node_rank))) for attempt in attempts]


def _done(attempt: int, node_rank: int) -> Done:
    results = (_fate(node_rank, Killed(15), local_rank) for local_rank in range(WORKERS))
    return Done(attempt, tuple(DatedResult(each, None) for each in results), None)


def _fate(node_rank: int, exit_status: ExitStatus, local_rank: int = 0) -> WorkerResult:
    return WorkerResult(
        rank=GlobalRank(WORKERS * node_rank + local_rank),
        local_rank=LocalRank(local_rank),
        host=f"gpu-{node_rank:04}",
        pid=20_000 + node_rank,
        exit_status=exit_status,
        stopped_by_us=isinstance(exit_status, Killed),
        clock=time.time(),
        ran_for=60.0,
        tail=TAIL,
        log="",
        error="",
        out_of_memory="",
    )
