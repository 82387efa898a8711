"""Nodes that join, each in a thread."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from clusterrun.errors import RendezvousError
from clusterrun.network.joining_node import JoinContext
from clusterrun.planning.plan import World
from clusterrun.policy import messages
from clusterrun.policy.settings import RendezvousSettings
from clusterrun.policy.waiting import WaitResult
from msgspec.structs import replace

from tests.network.nodes import PATIENCE, EventInbox, Node

# Agents have one thread; here each node is a thread, and a name is looked up in a fork.
NAMES_ARE_LOOKED_UP_IN_FORKS = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*fork:DeprecationWarning"
)

Joined = World | WaitResult


class Nodes:
    """Nodes that join at the same time."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(16)
        self._all: list[Future[Joined]] = []
        self._members: list[Node] = []

    def join(
        self,
        settings: RendezvousSettings,
        introduction: messages.Hello,
        where: JoinContext | None = None,
        token: bytes = b"",
        *,
        inbox: EventInbox | None = None,
    ) -> Future[Joined]:
        """Let one node join."""
        run_id = introduction.run_id or settings.job.join.run_id
        joining = replace(settings.job.join, run_id=run_id)
        settings = replace(settings, job=replace(settings.job, join=joining))

        def join() -> Joined:
            node = Node(settings, introduction, token, where, inbox=inbox)
            self._members.append(node)
            joined: Joined | None = None
            try:
                joined = node.join()
            finally:
                # Otherwise its agent exits.
                if not isinstance(joined, World):
                    node.leave()
            return joined

        future = self._executor.submit(join)
        self._all.append(future)
        return future

    def close(self) -> None:
        """Let all leave, the first one last."""
        for future in self._all:
            future.exception(PATIENCE)
        for node in reversed(self._members):
            node.leave()
        self._executor.shutdown()


def world(future: Future[Joined]) -> World:
    """Return the world of a node that has joined."""
    joined = future.result(PATIENCE)
    assert isinstance(joined, World)
    return joined


def error(future: Future[Joined]) -> RendezvousError:
    """Return why a node could not join."""
    with pytest.raises(RendezvousError) as caught:
        future.result(PATIENCE)
    return caught.value
