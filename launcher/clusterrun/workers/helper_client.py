"""A helper process of the agent, as a source of its events."""

import signal
from collections.abc import Iterable, Sequence

from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event, HelperLost
from clusterrun.workers.fork_server.channel import HelperChannel
from clusterrun.workers.helper_watch import HelperWatch


class HelperClient:
    """A helper process at the other end of a channel, as a source of the agent's events.

    One that does not answer any more is killed, and is lost.
    """

    name = ""
    """As the user reads it."""

    def __init__(self, channel: HelperChannel, pid: int) -> None:
        self.pid = pid
        self.lost = False
        """Whether the process has ended though the agent did not ask it to."""
        self._channel = channel
        self._loop: Loop[Event] | None = None
        self._helper_watch = HelperWatch()

    @property
    def due(self) -> float:
        """When to call ``events``, even if nothing has come."""
        return NEVER if self.lost else self._helper_watch.due

    def run_in(self, loop: Loop[Event]) -> None:
        """Have the agent's loop wait for this process, until it is lost or closed."""
        self._loop = loop
        self._helper_watch.begin(loop.clock())
        loop.time(self)
        self._watch()

    def events(self, now: float) -> Iterable[Event]:
        """Return what has happened, with the time ``now`` of the agent's monotonic clock."""
        self._channel.flush()
        if not self.lost:
            yield from self._happened(now)
        # All that has come is read by now.
        if not self.lost and now >= self._helper_watch.due:
            yield from self._look(now)
        self._watch()

    def _look(self, now: float) -> Iterable[Event]:
        how = self._helper_watch.look(self._watched_pid, now)
        if how:
            self.lost = True
            self._kill(how)
            yield HelperLost(self.name, how, signal.SIGKILL, now)
        elif self._can_answer and not self._helper_watch.is_asked:
            self._helper_watch.is_asked = True
            self._send("ping")

    @property
    def _watched_pid(self) -> int:
        return self.pid

    @property
    def _can_answer(self) -> bool:
        """Whether it answers a ``ping`` at once; if not, only one that is stopped is lost."""
        return False

    def _kill(self, how: str) -> None:
        """End the process, which does not answer, and all that it has started."""
        raise NotImplementedError

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
