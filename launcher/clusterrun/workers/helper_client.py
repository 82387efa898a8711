"""A helper process of the agent, as a source of its events."""

from collections.abc import Iterable, Sequence

from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event
from clusterrun.workers.fork_server.channel import HelperChannel


class HelperClient:
    """A helper process at the other end of a channel, as a source of the agent's events."""

    def __init__(self, channel: HelperChannel, pid: int) -> None:
        self.pid = pid
        self.lost = False
        """Whether the process has ended though the agent did not ask it to."""
        self._channel = channel
        self._loop: Loop[Event] | None = None

    @property
    def due(self) -> float:
        """When to call ``events``, even if nothing has come."""
        return NEVER

    def run_in(self, loop: Loop[Event]) -> None:
        """Have the agent's loop wait for this process, until it is lost or closed."""
        self._loop = loop
        loop.time(self)
        self._watch()

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, with the time ``now`` of the agent's monotonic clock."""
        self._channel.flush()
        if not self.lost:
            yield from self._happened(now)
        self._watch()

    def _happened(self, now: float) -> Iterable[Event]:
        """Read what the process has sent; set ``lost`` if it has ended."""
        raise NotImplementedError

    def _send(self, kind: str, descriptors: Sequence[int] = (), **fields: object) -> None:
        self._channel.send({"kind": kind, **fields}, descriptors)
        if self._channel.wants_write:
            self._watch()

    def _watch(self) -> None:
        if self._loop is None:
            return
        channel = self._channel
        if self.lost or channel.fileno() < 0:
            self._leave_loop()
        else:
            self._loop.watch(channel.fileno(), self.events, writes=channel.wants_write)

    def _leave_loop(self) -> None:
        """Be waited for no more: to be called before the channel is closed."""
        if self._loop is not None:
            self._loop.untime(self)
            self._loop.forget(self._channel.fileno())
            self._loop = None
