"""Nodes of a job without workers: one real node 0, and others, many of them in one process.

Node 0 runs what its agent runs, in a process of its own. The others have real connections and send
what real agents send, when they send it; they save a process for each node, and its start.
"""

import os
import select
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from clusterrun.coordination.messages import (
    Failing,
    Hello,
    Stop,
    Verdict,
    WorldFormed,
    done,
)
from clusterrun.coordination.restart_policy import RestartRules
from clusterrun.domain.events import Event, StopOrdered, VerdictReached
from clusterrun.domain.facts import Fact
from clusterrun.domain.outcome import Ending, Exited, Fate, Killed
from clusterrun.domain.ranks import GlobalRank, LocalRank
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.assumed import LOOPBACK
from clusterrun.rendezvous.joining.dialer import OutgoingConnection
from clusterrun.rendezvous.joining.join import wait_for
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.joining.node_zero import JoiningNodeZero
from clusterrun.rendezvous.joining.settings import RendezvousSettings
from clusterrun.rendezvous.names.addresses import numeric_address
from clusterrun.rendezvous.peers import Peers
from clusterrun.rendezvous.wire.connections import allow_descriptors
from clusterrun.rendezvous.wire.frames import HEARTBEAT_FRAME, framed

JOIN, FAIL, MEASURE = "join", "fail", "measure"
"""Orders of the benchmark to its processes."""

SPARE_DESCRIPTORS = 100

[NODE_ZERO] = numeric_address(LOOPBACK)

SECONDS_TO_JOIN = 120.0
"""After which node 0 ends, whoever has started it."""

WORKERS = 8
"""Of each node."""

TAIL = "Traceback (most recent call last):\n" + 5 * '  File "train.py", line 12, in <module>\n'


MOST_UNANSWERED = 1000
"""Calls of one process at a time, so that the kernel's queue of node 0 (4096) has room for all: a call
that it drops is repeated after seconds."""


class SimulatedNode:
    """A member, and when it learnt what."""

    def __init__(self, rank: int, nodes: int) -> None:
        """Make all messages in advance: a real node has processors of its own for that."""
        self.joined_at = self.stopped_at = self.ended_at = 0.0
        self.failed_at = 0.0
        """When it reported its worker's failure; 0: it reported none."""
        self._hello = framed(_hello(rank, nodes))
        self._failing = framed(Failing(0, _fate(rank, Exited(1)), 0.0))
        self._done = framed(done(0, _stopped(rank), time.time(), None))

    def call(self, port: int) -> None:
        """Connect to node 0."""
        self.outgoing = OutgoingConnection(NODE_ZERO, port, b"")

    def read(self) -> None:
        """Read all that has come, and answer as an agent does."""
        connection = self.outgoing
        was_ready = connection.is_ready
        messages = connection.receive()
        now = time.monotonic()
        if connection.is_ready and not was_ready:
            connection.send_frame(self._hello)
        for message in messages:
            match message:
                case WorldFormed():
                    self.joined_at = now
                case Stop():
                    self.stopped_at = now
                    connection.send_frame(self._done)
                case Verdict():
                    self.ended_at = now
                    connection.close()
                case _:
                    continue

    def fail(self) -> None:
        """Report that the worker has failed."""
        self.failed_at = time.monotonic()
        self.outgoing.send_frame(self._failing)


class SimulatedNodes:
    """The nodes of one process, on one epoll."""

    def __init__(self, ranks: range, nodes: int, port: int) -> None:
        self.nodes = [SimulatedNode(rank, nodes) for rank in ranks]
        self.epoll = select.epoll()
        self._port = port
        self._interval = rendezvous_settings(nodes, port).rhythm.interval
        self._by_descriptor: dict[int, SimulatedNode] = {}
        self._unanswered: set[int] = set()

    def join(self) -> None:
        """Let all nodes call node 0, and wait until each knows its ranks."""
        for node in self.nodes:
            self._call(node)
            while len(self._unanswered) >= MOST_UNANSWERED:
                self.turn(time.monotonic() + SECONDS_TO_JOIN)
        while not all(node.joined_at for node in self.nodes):
            self.turn(time.monotonic() + SECONDS_TO_JOIN)

    def _call(self, node: SimulatedNode) -> None:
        node.call(self._port)
        self._by_descriptor[node.outgoing.fileno()] = node
        self._unanswered.add(node.outgoing.fileno())
        node.outgoing.watch(self.epoll)

    def turn(self, until: float) -> None:
        """Serve the connections that are ready; wait until then for the first."""
        for descriptor, _ in self.epoll.poll(max(0.0, until - time.monotonic()), 256):
            node = self._by_descriptor.get(descriptor)
            if node is None:
                continue
            node.read()
            if node.outgoing.is_ready:
                self._unanswered.discard(descriptor)
            if node.outgoing.closed:
                del self._by_descriptor[descriptor]
                self._unanswered.discard(descriptor)
                node.outgoing.close()
                if not node.joined_at:
                    # Refused because this process was too slow: real nodes call again, too.
                    self._call(node)
            else:
                node.outgoing.watch(self.epoll)

    def run(self, pipe: Pipe) -> None:
        """Send heartbeats until the job has ended; let one node fail when the benchmark asks."""
        self.epoll.register(pipe, select.EPOLLIN)
        beats, began = 0, time.monotonic()
        while self._by_descriptor:
            next_beat = began + beats * self._interval / len(self.nodes)
            while next_beat <= time.monotonic():
                self.nodes[beats % len(self.nodes)].outgoing.send_frame(HEARTBEAT_FRAME)
                beats += 1
                next_beat = began + beats * self._interval / len(self.nodes)
            self.turn(next_beat)
            if pipe.poll() and pipe.recv() == FAIL:
                self.nodes[0].fail()


def simulate_nodes(pipe: Pipe, ranks: range, nodes: int, port: int) -> None:
    """Simulate these nodes.

    Sends None once it is ready; when the last node joined; and at the end when the first one failed,
    when each of the others learnt of it, and when the last one learnt why the job had ended.
    """
    allow_descriptors(len(ranks) + SPARE_DESCRIPTORS)
    with suppress(EOFError):
        simulated = SimulatedNodes(ranks, nodes, port)
        pipe.send(None)
        pipe.recv()
        simulated.join()
        pipe.send(max(node.joined_at for node in simulated.nodes))
        simulated.run(pipe)
        failed = simulated.nodes[0].failed_at
        stops = [node.stopped_at for node in simulated.nodes if not node.failed_at]
        pipe.send((failed, stops, max(node.ended_at for node in simulated.nodes)))


def node_zero(pipe: Pipe, nodes: int, port: int) -> None:
    """Be node 0. Sends what this process uses when others can call, when it is asked, at the end."""
    node = JoiningNode(rendezvous_settings(nodes, port), _hello(0, nodes), b"", _hooks())
    node_zero = JoiningNodeZero(node, time.monotonic())
    pipe.send(measured())
    wait_for(node_zero, node.hooks)
    formed = node_zero.formed
    if formed is None:
        raise node_zero.failure or AssertionError("no signal comes here")
    node_zero.close_all_but_server()
    with suppress(EOFError):
        _supervise(
            Peers(
                formed.world,
                formed.host,
                node_zero.connection,
                early=node_zero.early,
                coordination=node_zero.server,
                rhythm=node.settings.rhythm,
                hooks=node.hooks,
            ),
            pipe,
        )


def _supervise(peers: Peers, pipe: Pipe) -> None:
    """Do what an agent does whose only worker ends as soon as it is stopped."""
    with select.epoll() as epoll:
        epoll.register(peers, select.EPOLLIN)
        epoll.register(pipe, select.EPOLLIN)
        over = False
        while not over:
            epoll.poll()
            if pipe.poll() and pipe.recv() == MEASURE:
                pipe.send(measured())
            now = time.monotonic()
            for event in peers.events(now):
                if isinstance(event, StopOrdered):
                    peers.send(done(0, _stopped(0), time.time(), None))
                over |= isinstance(event, VerdictReached)
    peers.leave()
    pipe.send(measured())


def measured() -> tuple[int, float]:
    """Return the bytes that this process holds, without mapped files, and its processor seconds.

    The share of libraries in it would shrink as soon as other processes use them (PSS).
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return held, time.process_time()


def rendezvous_settings(nodes: int, port: int) -> RendezvousSettings:
    """Return what ``clusterrun --nnodes NODES --master-addr 127.0.0.1`` makes of its options."""
    return RendezvousSettings(
        nodes=nodes,
        host=Fact(LOOPBACK, "--master-addr"),
        ports=Fact((port,), "--master-port"),
        keeps_joining_port=False,
        timeout=SECONDS_TO_JOIN,
        run_id="7f3a9c21",
        heartbeat_timeout=15.0,
        restarts=RestartRules(),
    )


def _hello(rank: int, nodes: int) -> Hello:
    return Hello(
        identity=os.urandom(8).hex(),
        host=f"gpu-{rank:04}",
        pid=10_000 + rank,
        user_id=os.getuid(),
        workers=WORKERS,
        rank=rank,
        run_id="",
        must={
            "nnodes": str(nodes),
            "max_restarts": "0",
            "no_restart_exit_codes": "none",
            "no_fail_fast": "no",
            "heartbeat_timeout": "15",
            "hang_timeout": "0",
        },
        should={"script": "train.py", "arguments": "--lr 1e-4", "python": "3.12", "torch": "2.9"},
    )


def _stopped(node_rank: int) -> list[Fate]:
    return [_fate(node_rank, Killed(15), local_rank) for local_rank in range(WORKERS)]


def _fate(node_rank: int, ending: Ending, local_rank: int = 0) -> Fate:
    return Fate(
        rank=GlobalRank(WORKERS * node_rank + local_rank),
        local_rank=LocalRank(local_rank),
        host=f"gpu-{node_rank:04}",
        pid=20_000 + node_rank,
        ending=ending,
        stopped_by_us=isinstance(ending, Killed),
        clock=time.time(),
        ran_for=60.0,
        tail=TAIL,
        log="",
        error="",
        out_of_memory="",
    )


class _NoSignals:
    """Where signals would arrive."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0)

    def fileno(self) -> int:
        return self._descriptor

    def events(self, now: float) -> tuple[Event, ...]:
        del now
        return ()


def _hooks() -> AgentHooks:
    return AgentHooks(_NoSignals(), sys.stderr.write, time.monotonic)
