"""Requests of this node's user while the nodes join: ``clusterrun ps`` and ``stop`` reach the agent."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from clusterrun.control.control_socket import ControlSocket
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.time_limited import TimeLimited

if TYPE_CHECKING:
    # Imported for the first request: few jobs get any.
    from clusterrun.control.messages import Description
    from clusterrun.policy.events import Event
    from clusterrun.policy.messages import Ask
    from clusterrun.workers.relay.relay_client import RelayClient

SECONDS_TO_WAIT = 1.0
"""Most nodes have joined by then, and never open the socket."""

SECONDS_FOR_FOLDER = 1.0
"""How long the file system of the folder for sockets may take; after that there is no socket."""


def joining_requests(local: LocalJob, relay: RelayClient) -> ControlSocket:
    """Return the socket on which this agent listens while it waits for the others."""
    since = time.monotonic()

    def describe() -> Description:
        from clusterrun.control.messages import JOINING, Description
        from clusterrun.domain.bounds import as_line, as_name

        job = local.job
        return Description(
            run_id=job.joining.run_id,
            host=as_name(local.machine.host),
            pid=os.getpid(),
            node_rank=job.agent_rank or 0,
            nodes=job.agents,
            program=as_line(job.program.name),
            state=JOINING,
            running_for=time.monotonic() - since,
        )

    return ControlSocket(
        describe,
        _nothing_to_see,
        local.variables,
        TimeLimited(SECONDS_FOR_FOLDER),
        relay.remove_at_end,
        opens_at=since + SECONDS_TO_WAIT,
    )


def _nothing_to_see(_ask: Ask, reply: Callable[[bytes], None], _now: float) -> Iterable[Event]:
    from clusterrun.control.messages import encode
    from clusterrun.policy.looks import JobLook

    reply(encode(JobLook((), (), ())))
    return ()
