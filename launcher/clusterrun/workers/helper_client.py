"""A helper process of the agent, as a source of its events."""

from collections.abc import Iterable, Sequence

from clusterrun.loop import Loop
from clusterrun.policy.events import Event
from clusterrun.workers.fork_server.channel import HelperChannel, Message


class HelperClient:
    """A helper process at the other end of a channel, as a source of the agent's events."""

    def __init__(self, channel: HelperChannel, pid: int) -> None:
        self.pid = pid
        self.lost = False
        """Whether the process has ended though the agent did not ask it to."""
        self._channel = channel
        self._loop: Loop[Event] | None = None

    def fileno(self) -> int:
        return self._channel.fileno()

    def run_in(self, loop: Loop[Event]) -> None:
        """Have the agent's loop wait for this process, until it is lost or closed."""
        self._loop = loop
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

    def _send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self._channel.send(message, descriptors)
        if self._channel.wants_write:
            self._watch()

    def _watch(self) -> None:
        if self._loop is None:
            return
        if self.lost or self.fileno() < 0:
            self._leave_loop()
        else:
            self._loop.watch(self.fileno(), self.events, writes=self._channel.wants_write)

    def _leave_loop(self) -> None:
        """Be waited for no more: to be called before the channel is closed."""
        if self._loop is not None:
            self._loop.forget(self.fileno())
            self._loop = None
