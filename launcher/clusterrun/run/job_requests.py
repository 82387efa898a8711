"""Requests to the running job from outside: its user's commands, its scheduler's end and hook."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from clusterrun.agent.ports import TimedEventSource
from clusterrun.control.control_socket import ControlSocket
from clusterrun.domain.job import JobSpec
from clusterrun.domain.outcome import Outcome, Suspended
from clusterrun.domain.world import World
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.relay.relay_client import RelayClient
from clusterrun.workers.time_limited import TimeLimited

if TYPE_CHECKING:
    # Few jobs have one.
    from clusterrun.control.messages import Description
    from clusterrun.control.suspend_hook import SuspendHook

SECONDS_FOR_FOLDER = 1.0
"""How long the file system of the folder for sockets may take; after that there is no socket."""


class JobRequests:
    """The sources of requests on this node, until the job ends."""

    def __init__(
        self,
        local: LocalJob,
        world: World,
        relay: RelayClient,
        cleanup: ExitStack,
    ) -> None:
        """Start the hook and the timer on node 0; the socket opens once the workers start.

        Args:
            local: the job.
            world: this node's part in it.
            relay: prints, and removes the socket if this process is killed.
            cleanup: ends what is started here.

        """
        self._cleanup = cleanup
        self._relay = relay
        self._hook: SuspendHook | None = None
        self.sources: list[TimedEventSource] = [self._control_socket(local, world)]
        if world.node_rank == 0:
            self._listen_to_scheduler(local)

    def job_ended(self, outcome: Outcome) -> None:
        """Tell the hook that all ranks have saved, if so; print what goes wrong."""
        if self._hook is not None and isinstance(outcome.reason, Suspended):
            problem = self._hook.call_ready()
            if problem:
                self._relay.notice(f"warning: {problem}")

    def _control_socket(self, local: LocalJob, world: World) -> ControlSocket:
        files = TimeLimited(SECONDS_FOR_FOLDER)
        describe = partial(_describe, local, world)
        control = ControlSocket(describe, local.variables, files, self._relay.remove_at_end)
        self._cleanup.callback(control.close)
        return control

    def _listen_to_scheduler(self, local: LocalJob) -> None:
        job = local.job
        if job.suspend_before.value is not None and job.ends_at.value is not None:
            from clusterrun.control.end_timer import EndTimer

            due = job.ends_at.value - job.suspend_before.value - time.time() + time.monotonic()
            timer = EndTimer(due, _before_end(job))
            self._cleanup.callback(timer.close)
            self.sources.append(timer)
        if job.suspend_hook.value:
            from clusterrun.control.suspend_hook import SuspendHook
            from clusterrun.planning.variables.worker_variables import environment_before

            environ = environment_before(job, local.variables, local.resolved.unset)
            self._hook = SuspendHook(job.suspend_hook.value, environ, self._relay.notice)
            self._cleanup.callback(self._hook.close)
            self.sources.append(self._hook)


def _before_end(job: JobSpec) -> str:
    end = time.strftime("%H:%M:%S", time.localtime(job.ends_at.value))
    return (
        f"{job.suspend_before.origin} {job.suspend_before.value:g}:"
        f" the job ends at {end} ({job.ends_at.origin})"
    )


def _describe(local: LocalJob, world: World) -> Description:
    from clusterrun.control.messages import Description
    from clusterrun.domain.bounds import as_line, as_name

    return Description(
        run_id=world.run_id,
        host=as_name(local.machine.host),
        pid=os.getpid(),
        node_rank=world.node_rank,
        nodes=world.nodes,
        program=as_line(local.job.program.value.name),
    )
