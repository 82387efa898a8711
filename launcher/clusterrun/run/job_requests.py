"""Requests to the running job from outside: its user's commands, its scheduler's end and hook."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from clusterrun.agent.ports import TimedEventSource
from clusterrun.control.control_socket import ControlSocket
from clusterrun.control.look_desk import LookDesk, LookPorts
from clusterrun.job.job import Job
from clusterrun.policy.outcome import Outcome, Suspended
from clusterrun.run.job_machine import LocalJob
from clusterrun.run.job_view import JobView
from clusterrun.workers.helper_processes import HelperProcesses
from clusterrun.workers.time_limited import TimeLimited

if TYPE_CHECKING:
    # Few jobs have one.
    from clusterrun.control.suspend_hook import SuspendHook
    from clusterrun.rendezvous.peers import Peers
    from clusterrun.rendezvous.single_node import SingleNode

SECONDS_FOR_FOLDER = 1.0
"""How long the file system of the folder for sockets may take; after that there is no socket."""


class JobRequests:
    """The sources of requests on this node, until the job ends."""

    def __init__(
        self,
        local: LocalJob,
        nodes: SingleNode | Peers,
        helpers: HelperProcesses,
        cleanup: ExitStack,
    ) -> None:
        """Start the hook and the timer on node 0; the socket opens once the workers start.

        Args:
            local: the job.
            nodes: all nodes of it.
            helpers: what the workers do, and what removes the socket if this process is killed.
            cleanup: ends what is started here.

        """
        self._cleanup = cleanup
        self._relay = helpers.relay
        self._hook: SuspendHook | None = None
        world = nodes.first_world
        self.view = JobView(local, world, helpers.relay, helpers.fork_server)
        cleanup.callback(self.view.close)
        self.looks = LookDesk(
            LookPorts(
                nodes.send,
                self.view.ask_relay,
                self.view.answer,
                lambda: self.view.node_rank,
                nodes.coordinator,
            )
        )
        cleanup.callback(self.looks.close)
        self.sources: list[TimedEventSource] = [self.looks, self._control_socket(local)]
        if world.node_rank == 0:
            self._listen_to_scheduler(local)

    def job_ended(self, outcome: Outcome) -> None:
        """Tell the hook that all ranks have saved, if so; print what goes wrong."""
        if self._hook is not None and isinstance(outcome.reason, Suspended):
            problem = self._hook.call_ready()
            if problem:
                self._relay.notice(f"warning: {problem}")

    def _control_socket(self, local: LocalJob) -> ControlSocket:
        files = TimeLimited(SECONDS_FOR_FOLDER)
        control = ControlSocket(
            self.view.describe,
            self.looks.look,
            local.variables,
            files,
            self._relay.remove_at_end,
            notice=self._relay.notice,
        )
        self._cleanup.callback(control.close)
        return control

    def _listen_to_scheduler(self, local: LocalJob) -> None:
        job = local.job
        if job.suspending.suspend_before is not None and job.ends_at is not None:
            from clusterrun.control.end_timer import EndTimer

            due = job.ends_at - job.suspending.suspend_before - time.time() + time.monotonic()
            timer = EndTimer(due, _before_end(job))
            self._cleanup.callback(timer.close)
            self.sources.append(timer)
        if job.suspending.suspend_hook:
            from clusterrun.control.suspend_hook import SuspendHook

            hook = job.suspending.suspend_hook
            self._hook = SuspendHook(hook, local.environment, self._relay.notice)
            self._cleanup.callback(self._hook.close)
            self.sources.append(self._hook)


def _before_end(job: Job) -> str:
    end = time.strftime("%H:%M:%S", time.localtime(job.ends_at))
    return (
        f"{job.origin('suspend_before')} {job.suspending.suspend_before:g}:"
        f" the job ends at {end} ({job.origin('ends_at')})"
    )
