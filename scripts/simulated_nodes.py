"""Nodes of a job without workers: one real node 0, and crowds of others, many in one process.

Node 0 is what its agent is, in a process of its own. The others have real connections and say what
real ones say, when real ones do; what they save is a process each, and its start.
"""

import os
import select
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection as Line
from pathlib import Path

from clusterrun.coordination.bounded_messages import done, failing
from clusterrun.coordination.messages import (
    Hello,
    Stop,
    Verdict,
    WorldFormed,
)
from clusterrun.coordination.restart_policy import RestartRules
from clusterrun.domain.events import Event, StopOrdered, VerdictReached
from clusterrun.domain.facts import Fact
from clusterrun.domain.outcome import Ending, Exited, Fate, Killed
from clusterrun.domain.ranks import GlobalRank, LocalRank
from clusterrun.rendezvous.agent_hooks import AgentHooks
from clusterrun.rendezvous.joining.dialer import OutgoingConnection
from clusterrun.rendezvous.joining.join import LOOPBACK, wait_for
from clusterrun.rendezvous.joining.joining_node import JoiningNode
from clusterrun.rendezvous.joining.node_zero import JoiningNodeZero
from clusterrun.rendezvous.joining.settings import RendezvousSettings
from clusterrun.rendezvous.names.addresses import numeric_address
from clusterrun.rendezvous.peers import Peers
from clusterrun.rendezvous.wire.connections import allow_descriptors
from clusterrun.rendezvous.wire.frames import (
    ALIVE,
    framed,
)

OPEN, GO, WEIGH, FAIL = "open", "go", "weigh", "fail"
"""What is said on the lines between the processes of the benchmark."""

SPARE_DESCRIPTORS = 100

[NODE_ZERO] = numeric_address(LOOPBACK)

SECONDS_TO_JOIN = 120.0
"""After which node 0 ends, whoever has started it."""

WORKERS = 8
"""Of each node."""

TAIL = "Traceback (most recent call last):\n" + 5 * '  File "train.py", line 12, in <module>\n'


class Simulated:
    """A member, and when it heard what."""

    def __init__(self, rank: int, nodes: int) -> None:
        """Think of all that will be said: a real node has processors of its own for that."""
        self.joined_at = self.stopped_at = self.ended_at = 0.0
        self.failed_at = 0.0
        """When it said that its worker had failed; 0: others were first."""
        self._hello = framed(_hello(rank, nodes))
        self._failing = framed(failing(0, _fate(rank, Exited(1)), 0.0))
        self._done = framed(done(0, _stopped(rank), time.time(), None))

    def dial(self, port: int) -> None:
        """Call node 0."""
        self.call = OutgoingConnection(NODE_ZERO, port, b"")
        self.mask = self.call.mask

    def go_on(self) -> None:
        """Hear all that has come, and answer as an agent does."""
        greeted = self.call.connection.greeted
        messages = self.call.messages()
        now = time.monotonic()
        if not greeted and self.call.connection.greeted:
            self.call.connection.send_frame(self._hello)
        for message in messages:
            match message:
                case WorldFormed():
                    self.joined_at = now
                case Stop():
                    self.stopped_at = now
                    self.call.connection.send_frame(self._done)
                case Verdict():
                    self.ended_at = now
                    self.call.connection.close()
                case _:
                    continue

    def fail(self) -> None:
        """Say that the worker has failed."""
        self.failed_at = time.monotonic()
        self.call.connection.send_frame(self._failing)


class Crowd:
    """Members of one process, on one epoll."""

    def __init__(self, ranks: range, nodes: int, port: int) -> None:
        """Take the place where they will all call node 0."""
        self.members = [Simulated(rank, nodes) for rank in ranks]
        self.epoll = select.epoll()
        self._port = port
        self._interval = rendezvous_settings(nodes, port).rhythm.interval
        self._by_descriptor: dict[int, Simulated] = {}

    def join(self) -> None:
        """Call node 0, all at once, and wait until all know their place."""
        for member in self.members:
            member.dial(self._port)
            self._by_descriptor[member.call.fileno()] = member
            self.epoll.register(member.call, member.mask)
        while not all(member.joined_at for member in self.members):
            self.turn(time.monotonic() + SECONDS_TO_JOIN)

    def turn(self, until: float) -> None:
        """Let those go on who can, and wait for the first of them until then."""
        for descriptor, _ in self.epoll.poll(max(0.0, until - time.monotonic()), 256):
            member = self._by_descriptor.get(descriptor)
            if member is None:
                continue
            member.go_on()
            if member.call.connection.closed:
                del self._by_descriptor[descriptor]
            elif member.mask != member.call.mask:
                member.mask = member.call.mask
                self.epoll.modify(descriptor, member.mask)

    def live(self, line: Line) -> None:
        """Take part in a job to its end; let one fail when that is asked for."""
        self.epoll.register(line, select.EPOLLIN)
        beats, began = 0, time.monotonic()
        while self._by_descriptor:
            next_beat = began + beats * self._interval / len(self.members)
            while next_beat <= time.monotonic():
                self.members[beats % len(self.members)].call.connection.send_frame(ALIVE)
                beats += 1
                next_beat = began + beats * self._interval / len(self.members)
            self.turn(next_beat)
            if line.poll() and line.recv() == FAIL:
                self.members[0].fail()


def crowd(line: Line, ranks: range, nodes: int, port: int) -> None:
    """Be these nodes. Says when they have joined, and at the end when each heard of what.

    The answers are when the last one joined; then when the first failed, when each of the others
    heard of it, and when the last one knew why the job had ended.
    """
    allow_descriptors(len(ranks) + SPARE_DESCRIPTORS)
    with suppress(EOFError):
        them = Crowd(ranks, nodes, port)
        line.send(OPEN)
        line.recv()
        them.join()
        line.send(max(member.joined_at for member in them.members))
        them.live(line)
        failed = them.members[0].failed_at
        heard = [member.stopped_at for member in them.members if not member.failed_at]
        line.send((failed, heard, max(member.ended_at for member in them.members)))


def node_zero(line: Line, nodes: int, port: int) -> None:
    """Be node 0. Says what this process holds as soon as others can call, and when it is asked."""
    node = JoiningNode(rendezvous_settings(nodes, port), _hello(0, nodes), b"", _hooks())
    node_zero = JoiningNodeZero(node, time.monotonic())
    line.send(bytes_held())
    wait_for(node_zero, node.hooks)
    formed = node_zero.formed
    if formed is None:
        raise node_zero.failure or AssertionError("no signal comes here")
    node_zero.close_all_but_server()
    with suppress(EOFError):
        _supervise(
            Peers(
                formed.world,
                "",
                formed.host,
                node_zero.connection,
                early=node_zero.early,
                coordination=node_zero.server,
                rhythm=node.settings.rhythm,
                hooks=node.hooks,
            ),
            line,
        )


def _supervise(peers: Peers, line: Line) -> None:
    """Do what an agent does whose only worker ends when it is told to."""
    with select.epoll() as epoll:
        epoll.register(peers, select.EPOLLIN)
        epoll.register(line, select.EPOLLIN)
        over = False
        while not over:
            epoll.poll()
            if line.poll() and line.recv() == WEIGH:
                line.send(bytes_held())
            now = time.monotonic()
            for event in peers.events(now):
                if isinstance(event, StopOrdered):
                    peers.report_end(_stopped(0), time.time(), None)
                over |= isinstance(event, VerdictReached)
    peers.leave()


def bytes_held() -> int:
    """Return the memory that this process holds for itself, but for what it has read from files.

    That of libraries would seem to shrink as soon as others use them, too (PSS).
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def rendezvous_settings(nodes: int, port: int) -> RendezvousSettings:
    """Return what ``clusterrun --nnodes NODES --master-addr 127.0.0.1`` makes of its options."""
    return RendezvousSettings(
        nodes=nodes,
        host=Fact(LOOPBACK, "--master-addr"),
        ports=Fact((port,), "--master-port"),
        open_for_good=False,
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
