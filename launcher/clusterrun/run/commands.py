"""Serves the user's commands while the job runs: ``clusterrun ps``, ``stop``, ``status`` and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event, QueryEvent, RelayAnswer, RelayAnswered, StacksCollected
from clusterrun.processes import TimeLimitedCalls
from clusterrun.run.attempts import JobProgress
from clusterrun.run.node import LocalNode
from clusterrun.workers.fork_server.messages import FlushOutput, RemoveAtEnd
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient

if TYPE_CHECKING:
    # Few jobs need them.
    from clusterrun.network.membership import Membership
    from clusterrun.network.query_service import QueryService
    from clusterrun.network.requests import Description
    from clusterrun.policy.queries import Answer, Query
    from clusterrun.run.node_answers import NodeAnswers
    from clusterrun.run.single_node import SingleNodeMembership

SECONDS_TO_WAIT = 1.0
"""Until the socket opens if the nodes have not joined before; most have by then."""

SECONDS_FOR_FOLDER = 1.0
"""For the file system of the folder for sockets; if it takes longer, there is no socket."""

SECONDS_TO_SHOW = 10.0
"""For the reader of the workers' output; then the caller gets its answer before the output is shown."""


class Commands:
    """Serves commands from soon after the agent's start to its end.

    The modules for it are imported when the first command comes, because few jobs get any.
    """

    def __init__(
        self,
        node: LocalNode,
        nodes: SingleNodeMembership | Membership,
        relay: RelayClient,
        fork_server: ForkServer,
        loop: Loop[Event],
    ) -> None:
        """Listen soon, so ``clusterrun ps`` and ``stop`` reach an agent that waits for other nodes.

        Args:
            node: this node.
            nodes: the membership of the job.
            relay: prints, and removes the socket if this process is killed.
            fork_server: the parent of the workers.
            loop: the agent's loop.

        """
        self.progress = JobProgress(loop.clock())
        """The state of the job that commands show."""
        self.due = loop.clock() + SECONDS_TO_WAIT
        """When the socket opens."""
        self._node, self._nodes = node, nodes
        self._relay, self._fork_server = relay, fork_server
        self._loop = loop
        self._opened = ExitStack()
        loop.add_timer(self)

    def nodes_joined(self) -> None:
        """Note that all nodes have joined."""
        self.progress.since = self._loop.clock()
        if self.due != NEVER:
            # Later, in the loop, so the start of the workers does not wait for it.
            self.due = 0.0

    def events(self, _now: float) -> Iterable[Event]:
        """Open the socket."""
        from clusterrun.network.control import ControlSocket

        self.due = NEVER
        control = ControlSocket(
            self._describe,
            self._ask,
            self._node.variables,
            files=TimeLimitedCalls(SECONDS_FOR_FOLDER),
            remove_at_end=lambda path: self._relay.send(RemoveAtEnd(str(path))),
            notice=self._relay.notice,
            loop=self._loop,
        )
        self._opened.callback(control.close)
        return ()

    def close(self) -> None:
        """Close the socket, and stop collecting answers."""
        self._loop.remove_timer(self)
        self._opened.close()

    def take(self, event: QueryEvent) -> Iterable[Event]:
        """Handle a message about queries from the coordinator, or an answer of the relay."""
        if isinstance(event, RelayAnswered):
            return self._answers.questions.take(event)
        return self._queries.take(event)

    def collect_stacks(self, now: float) -> Iterable[Event]:
        """Collect the stacks of this node's workers for the policy, which gets ``StacksCollected``."""
        from clusterrun.policy.answers import NodeStacks, decode_answer
        from clusterrun.policy.queries import SECONDS_FOR_REPORTS, Query, Topic

        def then(answer: Answer) -> Iterable[Event]:
            stacks = decode_answer(answer, NodeStacks)
            if isinstance(stacks, NodeStacks):
                yield StacksCollected(stacks.groups, self._loop.clock())

        return self._answers.answer(Query(0, Topic.STACKS, SECONDS_FOR_REPORTS), then, now)

    def show_output(self, then: Callable[[], object], now: float) -> Iterable[Event]:
        """Show all that workers have printed by now; then call ``then``."""

        def show(number: int) -> None:
            self._relay.send(FlushOutput(number))

        def shown(_seen: RelayAnswer | None, _at: float) -> Iterable[Event]:
            then()
            return ()

        return self._answers.questions.ask(show, shown, SECONDS_TO_SHOW, now)

    def _ask(self, query: Query, reply: Callable[[bytes], None], now: float) -> Iterable[Event]:
        if self.progress.attempt is not None:
            return self._queries.ask(query, reply, now)
        import msgspec

        from clusterrun.policy.queries import Answers, EndOfAnswers

        # No worker has started yet.
        reply(msgspec.msgpack.encode(Answers((), EndOfAnswers(query.number))))
        return ()

    def _describe(self) -> Description:
        return self._answers.describe()

    @cached_property
    def _answers(self) -> NodeAnswers:
        from clusterrun.run.node_answers import NodeAnswers

        answers = NodeAnswers(self._node, self.progress, self._relay, self._fork_server, self._loop)
        self._opened.callback(answers.close)
        return answers

    @cached_property
    def _queries(self) -> QueryService:
        from clusterrun.network.query_service import AgentCallbacks, QueryService

        answers, nodes = self._answers, self._nodes
        ports = AgentCallbacks(
            nodes.send,
            answers.answer,
            answers.concerns,
            lambda: nodes.node_zero,
        )
        queries = QueryService(ports)
        self._loop.add_timer(queries)
        return queries
