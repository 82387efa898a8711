"""The commands of a user while the job runs: ``clusterrun ps``, ``stop``, ``status`` and the like."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event
from clusterrun.processes import TimeLimited
from clusterrun.run.attempts import JobProgress
from clusterrun.run.node import LocalNode
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient

if TYPE_CHECKING:
    # Few jobs need them.
    from clusterrun.network.look_desk import LookDesk
    from clusterrun.network.membership import Membership
    from clusterrun.network.requests import Description
    from clusterrun.policy.messages import Ask
    from clusterrun.run.look import NodeView
    from clusterrun.run.one_node import OneNode

SECONDS_TO_WAIT = 1.0
"""Until the socket for commands opens if the nodes have not joined: most have by then."""

SECONDS_FOR_FOLDER = 1.0
"""How long the file system of the folder for sockets may take; after that there is no socket."""


class Commands:
    """Takes them from soon after the agent's start to its end, and has looks into the job answered.

    What answers is imported for the first of them: few jobs get any.
    """

    def __init__(
        self,
        node: LocalNode,
        nodes: OneNode | Membership,
        relay: RelayClient,
        fork_server: ForkServer,
        loop: Loop[Event],
    ) -> None:
        """Listen, soon: ``clusterrun ps`` and ``stop`` reach an agent that joins, too.

        Args:
            node: this node.
            nodes: all nodes of the job.
            relay: prints, and removes the socket if this process is killed.
            fork_server: has started what is shown.
            loop: the agent's.

        """
        self.progress = JobProgress(loop.clock())
        """What commands show of the job."""
        self.due = loop.clock() + SECONDS_TO_WAIT
        """When the socket opens."""
        self._node, self._nodes = node, nodes
        self._relay, self._fork_server = relay, fork_server
        self._loop = loop
        self._opened = ExitStack()
        loop.time(self)

    def workers_start(self) -> None:
        """Note that all nodes have joined."""
        self.progress.since = self._loop.clock()
        if self.due != NEVER:
            # In the loop, while workers start already: no launch waits for it.
            self.due = 0.0

    def events(self, _now: float) -> Iterable[Event]:
        """Open the socket."""
        from clusterrun.network.control import ControlSocket

        self.due = NEVER
        control = ControlSocket(
            self._describe,
            self._look,
            self._node.variables,
            files=TimeLimited(SECONDS_FOR_FOLDER),
            remove_at_end=self._relay.remove_at_end,
            notice=self._relay.notice,
            loop=self._loop,
        )
        self._opened.callback(control.close)
        return ()

    def close(self) -> None:
        """Take no more of them, and end what still finds out an answer."""
        self._loop.untime(self)
        self._opened.close()

    def _look(self, ask: Ask, reply: Callable[[bytes], None], now: float) -> Iterable[Event]:
        if self.progress.attempt is not None:
            return self.desk.look(ask.look, reply, now)
        import msgspec

        from clusterrun.policy.looks import JobLook

        # There is nothing to see yet.
        reply(msgspec.msgpack.encode(JobLook((), (), ())))
        return ()

    def _describe(self) -> Description:
        return self._view.describe()

    @cached_property
    def _view(self) -> NodeView:
        from clusterrun.run.look import NodeView

        view = NodeView(self._node, self.progress, self._relay, self._fork_server)
        self._opened.callback(view.close)
        return view

    @cached_property
    def desk(self) -> LookDesk:
        """Where looks into the job are answered, those of this node's own policy among them."""
        from clusterrun.network.look_desk import LookDesk, LookPorts

        view, nodes = self._view, self._nodes
        ports = LookPorts(nodes.send, view.ask_relay, view.answer, lambda: nodes.node_zero)
        desk = LookDesk(ports)
        self._loop.time(desk)
        return desk
