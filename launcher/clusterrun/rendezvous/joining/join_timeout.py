"""The time in which all nodes have to join, and when to print that this node still waits."""

from clusterrun.errors import RendezvousError
from clusterrun.policy.joining import SECONDS_BETWEEN_NOTICES, SECONDS_TO_FIRST_NOTICE
from clusterrun.rendezvous.joining.join_failures import (
    DialProgress,
    not_connected,
    not_connected_yet,
)
from clusterrun.rendezvous.joining.joining_node import JoiningNode


class JoinTimeout:
    """Starts at ``now`` and is over after ``seconds``."""

    def __init__(self, seconds: float, now: float) -> None:
        self.seconds = seconds
        self._start = now
        self._next_notice = now + SECONDS_TO_FIRST_NOTICE

    @property
    def due(self) -> float:
        """When a notice is due or the time is over."""
        return min(self._next_notice, self._start + self.seconds)

    def elapsed(self, now: float) -> float:
        return now - self._start

    def check(
        self, node: JoiningNode, progress: DialProgress, now: float
    ) -> RendezvousError | None:
        """Return the error of a node that has no connection yet, or print a notice if that is due."""
        if now >= self._start + self.seconds:
            return not_connected(node.terms, progress, node.hello.rank)
        if now >= self._next_notice:
            self._next_notice = now + SECONDS_BETWEEN_NOTICES
            elapsed = f"{self.elapsed(now):.0f} s of {self.seconds:g} s"
            node.hooks.notice(not_connected_yet(node.terms, progress, elapsed))
        return None
