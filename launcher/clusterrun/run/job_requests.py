"""Requests to the job from outside: its user's commands, its scheduler's end and hook."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from clusterrun.domain.world import World
from clusterrun.job.job import Job
from clusterrun.loop import NEVER, Loop
from clusterrun.policy.events import Event, SuspensionWanted
from clusterrun.policy.outcome import Outcome, Suspended
from clusterrun.processes import TimeLimited
from clusterrun.run.job_machine import LocalJob
from clusterrun.run.job_view import JobView
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient

if TYPE_CHECKING:
    # Few jobs need them.
    from clusterrun.network.look_desk import LookDesk
    from clusterrun.network.membership import Membership
    from clusterrun.network.requests import Description
    from clusterrun.network.suspend_hook import SuspendHook
    from clusterrun.policy.events import LookEvent
    from clusterrun.policy.messages import Ask
    from clusterrun.run.one_node import OneNode

SECONDS_TO_WAIT = 1.0
"""Until the socket for commands opens if the nodes have not joined: most have by then."""

SECONDS_FOR_FOLDER = 1.0
"""How long the file system of the folder for sockets may take; after that there is no socket."""


class JobRequests:
    """The sources of requests on this node, until the job ends; it answers looks, too."""

    def __init__(  # noqa: PLR0913 - what the launch has prepared
        self,
        local: LocalJob,
        nodes: OneNode | Membership,
        relay: RelayClient,
        fork_server: ForkServer,
        *,
        loop: Loop[Event],
        cleanup: ExitStack,
    ) -> None:
        """Listen to commands, soon: ``clusterrun ps`` and ``stop`` reach an agent that joins, too.

        Args:
            local: the job.
            nodes: all nodes of it.
            relay: prints, and removes the socket if this process is killed.
            fork_server: has started what is shown.
            loop: the agent's.
            cleanup: ends what is started here.

        """
        self._local = local
        self._nodes = nodes
        self._relay, self._fork_server = relay, fork_server
        self._loop = loop
        self._cleanup = cleanup
        self._hook: SuspendHook | None = None
        self._view: JobView | None = None
        self._desk: LookDesk | None = None
        self._since = time.monotonic()
        self.due = self._since + SECONDS_TO_WAIT
        """When the socket for commands opens."""
        loop.time(self)

    def job_begins(self, world: World) -> JobView:
        """Show the job, now that all nodes have joined; start the hook and the timer on node 0."""
        self._view = JobView(self._local, world, self._relay, self._fork_server)
        self._cleanup.callback(self._view.close)
        if self.due != NEVER:
            # In the loop, while workers start already: no launch waits for it.
            self.due = 0.0
        if world.node_rank == 0:
            self._listen_to_scheduler(self._local)
        return self._view

    def events(self, _now: float) -> Iterable[Event]:
        """Open the socket for commands."""
        from clusterrun.network.control import ControlSocket

        self.due = NEVER
        relay = self._relay
        control = ControlSocket(
            self._describe,
            self._look,
            self._local.variables,
            files=TimeLimited(SECONDS_FOR_FOLDER),
            remove_at_end=relay.remove_at_end,
            notice=relay.notice,
            loop=self._loop,
        )
        self._cleanup.callback(control.close)
        return ()

    def take(self, event: LookEvent) -> Iterable[Event]:
        """Take what belongs to a look into the job."""
        return self._looks.take(event)

    def collect_stacks(self, now: float) -> Iterable[Event]:
        """Have this node's workers print their stacks, for its own policy."""
        return self._looks.collect_stacks(now)

    @property
    def _looks(self) -> LookDesk:
        if self._desk is None:
            # Few jobs are looked into.
            from clusterrun.network.look_desk import LookDesk, LookPorts

            view, nodes = self._view, self._nodes
            if view is None:
                raise AssertionError("a look into a job that has not begun")
            ports = LookPorts(
                nodes.send, view.ask_relay, view.answer, lambda: view.node_rank, nodes.coordinator
            )
            self._desk = LookDesk(ports)
            self._loop.time(self._desk)
        return self._desk

    def _look(self, ask: Ask, reply: Callable[[bytes], None], now: float) -> Iterable[Event]:
        if self._view is not None:
            return self._looks.look(ask, reply, now)
        from clusterrun.network.requests import encode
        from clusterrun.policy.looks import JobLook

        # There is nothing to see yet.
        reply(encode(JobLook((), (), ())))
        return ()

    def job_ended(self, outcome: Outcome) -> None:
        """Tell the hook that all ranks have saved, if so; print what goes wrong."""
        if self._hook is not None and isinstance(outcome.reason, Suspended):
            problem = self._hook.call_ready()
            if problem:
                self._relay.notice(f"warning: {problem}")

    def _describe(self) -> Description:
        """Describe the job, or an agent that waits for the others."""
        if self._view is not None:
            return self._view.describe()
        from clusterrun.domain.bounds import as_line, as_name
        from clusterrun.network.requests import JOINING, Description

        job = self._local.job
        return Description(
            run_id=job.joining.run_id,
            host=as_name(self._local.machine.host),
            pid=os.getpid(),
            node_rank=job.agent_rank or 0,
            nodes=job.agents,
            program=as_line(job.program.name),
            state=JOINING,
            running_for=time.monotonic() - self._since,
        )

    def _listen_to_scheduler(self, local: LocalJob) -> None:
        job = local.job
        if job.suspending.suspend_before is not None and job.ends_at is not None:
            due = job.ends_at - job.suspending.suspend_before - time.time() + time.monotonic()
            by = _before_end(job)
            self._loop.at("end of the job", due, lambda now: SuspensionWanted(by, now))
        if job.suspending.suspend_hook:
            from clusterrun.network.suspend_hook import SuspendHook

            words, relay = job.suspending.suspend_hook, self._relay
            self._hook = SuspendHook(words, local.environment, relay.notice, self._loop)
            self._cleanup.callback(self._hook.close)


def _before_end(job: Job) -> str:
    end = time.strftime("%H:%M:%S", time.localtime(job.ends_at))
    return (
        f"{job.origin('suspend_before')} {job.suspending.suspend_before:g}:"
        f" the job ends at {end} ({job.origin('ends_at')})"
    )
