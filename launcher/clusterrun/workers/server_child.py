"""The child of a warm fork server that serves this job."""

import signal

from clusterrun.processes import how_it_ended
from clusterrun.workers.fork_server.channel import Channel


class ServerChild:
    """Used as a ``ForkServerProcess``; it is no child of the agent's."""

    is_ready = True

    def __init__(self, pid: int, channel: Channel, python: str) -> None:
        self.pid = pid
        self.channel = channel
        self.python = python
        self.status: int | None = None
        """The ``wait`` status, from the warm one; None: it has reported none."""
        self.mask = sorted(int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    def close(self) -> None:
        """Close the connection: the child ends whatever it has started, and then itself."""
        self.channel.close()

    def becomes_ready(self) -> str:
        return ""

    def end(self) -> tuple[str, int]:
        """Return how it ended, and the signal or 0."""
        if self.status is not None:
            return how_it_ended(self.status)
        # The kernel kills it when the warm one ends, which then can't report.
        return "was killed with the warm fork server", signal.SIGKILL
