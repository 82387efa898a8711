"""Connections without sockets, as kernels keep them: for ``partition_job``."""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from socket import AF_INET
from typing import TYPE_CHECKING, Any

from clusterrun.errors import RendezvousError
from clusterrun.loop import NEVER, Priority
from clusterrun.network import channel
from clusterrun.network.addresses import Address
from clusterrun.network.channel import ChannelEnd
from clusterrun.network.joining_node import JoiningNode

if TYPE_CHECKING:
    from tests.policy.partition_job import PartitionJob
    from tests.policy.partition_nodes import Agent, ModelLoop

LONGEST_RETRY = 1.5
"""Seconds from the end of a cut until a kernel sends again what was lost."""

LISTENER = 3
"""The descriptor at which node 0 accepts connections."""

FIN, RST = object(), object()
"""The orderly end of a connection, and what a kernel answers that has forgotten it."""


class End:
    """One end of a connection, in place of the product's channel."""

    max_body_bytes = 0
    error_text = None
    wants_write = has_unfinished_input = False
    address = Address(AF_INET, "10.0.0.0", 0)
    local_address = "10.0.0.1"

    def __init__(self, wire: "Wire", agent: "Agent", number: int) -> None:
        self._wire, self._agent, self._number = wire, agent, number
        self.patience = 0.0
        self.unread: list[Any] = []
        self.end: ChannelEnd | None = None
        self._known: ChannelEnd | None = None
        """What its kernel knows of the connection's end, and the agent has not read."""
        self._is_gone = False
        """Its kernel has forgotten the connection."""
        self._has_agent = True
        self.is_held = False
        """The fork server has it, too."""
        self._forget: Callable[[int], object] = lambda _: None
        agent.ends[number] = self

    # What the product calls.

    def fileno(self) -> int:
        return self._number

    def getsockname(self) -> tuple[str, int]:
        return "10.0.0.0", 29500

    def watch(
        self,
        loop: "ModelLoop",
        ready: Any,
        rank: Priority = Priority.AUTHENTICATED,
        *,
        reads: bool = True,
    ) -> None:
        self._forget = loop.forget
        loop.watch(self._number, ready, rank, reads=reads)

    def limit_silence(self, seconds: float) -> None:
        self.patience = seconds
        self._wire.expects(self)

    def is_closed_by_peer(self) -> bool:
        return self.end is not None or (not self.unread and self._known is not None)

    def send(self, message: object) -> None:
        if self.end is None and not self._is_gone:
            self._wire.way_from(self).send(message)

    def send_body(self, body: bytes) -> None:
        self.send(channel.FROM_COORDINATOR.decode(body))

    def receive(self) -> list[Any]:
        if self.end is not None:
            return []
        read, self.unread = self.unread, []
        self.end = self._known
        return read

    def close(self, how: ChannelEnd = ChannelEnd.OURS) -> None:
        self.end = self.end or how
        self._forget(self._number)
        self._has_agent = False
        self._agent.ends.pop(self._number, None)
        self._may_go()

    def shut_down(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._wire.way_from(self).send(FIN)
        self.close()

    # What kernels do.

    @property
    def is_open(self) -> bool:
        return self._known is None and not self._is_gone

    @property
    def is_readable(self) -> bool:
        return bool(self.unread) or self._known is not None

    def arrives(self, item: object) -> None:
        """Take what has come from the other end."""
        if item is FIN:
            self.ends(ChannelEnd.CLOSED)
        elif item is RST:
            self.ends(ChannelEnd.RESET)
        elif self._is_gone:
            self._wire.resets(self)
        else:
            self.unread.append(item)
            self._agent.wake()

    def ends(self, how: ChannelEnd) -> None:
        """Take note that the connection has ended."""
        if not self.is_open:
            return
        self._known = how
        if how is not ChannelEnd.CLOSED:
            self._is_gone = True
            self._wire.is_probed(self)
        self._agent.wake()

    def leaves_agent(self) -> None:
        """Close it with its agent's process."""
        self._has_agent = False
        self._may_go()

    def leaves_fork_server(self) -> None:
        """Close it with the fork server's process, which has read what was unread."""
        if self.is_held:
            self.is_held = False
            if not self._has_agent:
                self.unread.clear()
            self._may_go()

    def _may_go(self) -> None:
        if self._has_agent or self.is_held or self._is_gone:
            return
        self._is_gone = True
        if self.unread:
            self._wire.resets(self)
            self._wire.is_probed(self)
        else:
            self._wire.way_from(self).send(FIN)


class Way:
    """One direction of a connection: it keeps the order, and delivers later what a cut has held back."""

    def __init__(self, job: "PartitionJob", receiver: End) -> None:
        self._job, self._receiver = job, receiver
        self._items = deque[tuple[float, object]]()
        self._last = 0.0
        self.is_open = True

    def send(self, item: object) -> None:
        job = self._job
        self._last = max(self._last, job.now + job.transit())
        self._items.append((self._last, item))
        if self.is_open:
            job.at(self._last, self._deliver)

    def set_open(self, *, is_open: bool) -> None:
        job = self._job
        if is_open and not self.is_open and self._items:
            again = job.now + job.dice.uniform(0.01, LONGEST_RETRY)
            self._items = deque((max(at, again), item) for at, item in self._items)
            self._last = max(self._last, again)
            for at in {at for at, _ in self._items}:
                job.at(at, self._deliver)
        self.is_open = is_open

    def _deliver(self) -> None:
        while self.is_open and self._items and self._items[0][0] <= self._job.now:
            self._receiver.arrives(self._items.popleft()[1])


class Wire:
    """A connection of a member to node 0."""

    def __init__(self, job: "PartitionJob", member: "Agent", node_zero: "Agent") -> None:
        self._job = job
        self._hosts = member.host, node_zero.host
        self.member = End(self, member, next(job.numbers))
        self.zero = End(self, node_zero, next(job.numbers))
        self._up, self._down = Way(job, self.zero), Way(job, self.member)
        self._breaks = 0
        self._is_broken = False

    def way_from(self, end: End) -> Way:
        return self._up if end is self.member else self._down

    def other(self, end: End) -> End:
        return self.zero if end is self.member else self.member

    def resets(self, end: End) -> None:
        """Let the kernel of this end reset the connection: it says so once, and may not be heard."""
        if self.way_from(end).is_open:
            self.way_from(end).send(RST)

    def is_probed(self, end: End) -> None:
        """Let the other kernel find out that this one has forgotten the connection."""
        other = self.other(end)
        if other.is_open and other.patience:
            self._job.later(other.patience / 3, partial(self._probes, end))

    def _probes(self, end: End) -> None:
        if not self._is_broken:
            self.other(end).ends(ChannelEnd.RESET)
        self.is_probed(end)

    def update(self) -> None:
        """Take note that hosts reach each other, or do not."""
        member, zero = self._hosts
        are_up = member.is_up and zero.is_up
        self._up.set_open(is_open=are_up and not member.up_cuts)
        self._down.set_open(is_open=are_up and not member.down_cuts)
        was_broken, self._is_broken = self._is_broken, not (self._up.is_open and self._down.is_open)
        if self._is_broken and not was_broken:
            self._breaks += 1
            for end in (self.member, self.zero):
                self.expects(end)

    def expects(self, end: End) -> None:
        """Let the kernel of this end give up the connection, unless it is whole by then."""
        if self._is_broken and end.patience:
            # Its timer runs since it has sent something, which an agent does each second.
            seconds = end.patience + self._job.dice.uniform(0.0, 1.0)
            self._job.later(seconds, partial(self._gives_up, end, self._breaks))

    def _gives_up(self, end: End, breaks: int) -> None:
        if self._is_broken and breaks == self._breaks:
            end.ends(ChannelEnd.UNREACHABLE)


class ModelPort:
    """In place of the port at which node 0 listens."""

    number = 29500

    def __init__(self) -> None:
        self.callers = deque[End]()
        self.is_open = True

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (LISTENER,) if self.is_open else ()

    def accepted(self) -> Iterator[tuple[End, tuple[str, int]]]:
        while self.callers:
            yield self.callers.popleft(), ("10.0.0.9", 5000)

    def close(self) -> None:
        self.is_open = False

    release = close


OPENED: list[ModelPort] = []
"""That of the node that begins to join."""


class ModelDialer:
    """In place of what looks up node 0 and connects to it."""

    addresses = (End.address,)

    def __init__(
        self, node: JoiningNode, loop: "ModelLoop", ready: object, *, retries_forever: bool = False
    ) -> None:
        self._agent = loop.agent
        self._began = self.due = loop.clock()
        self._gives_up = (
            NEVER if retries_forever else self._began + node.settings.job.join.rdzv_timeout
        )

    def elapsed(self, now: float) -> float:
        return now - self._began

    def dial(self, now: float) -> End | None:
        if now < self.due:
            return None
        if now >= self._gives_up:
            raise RendezvousError("node 0 does not answer")
        self.due = now + 0.5
        return self._agent.job.connects(self._agent)

    def reject(self, outgoing: End, _why: str, now: float) -> None:
        outgoing.close()
        self.due = now + 0.5

    def close(self) -> None:
        pass
