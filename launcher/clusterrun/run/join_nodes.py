"""Joining the nodes of a job: alone at once, or with the others by rendezvous."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterrun.domain.world import World
from clusterrun.errors import LauncherError
from clusterrun.job.job import Job
from clusterrun.loop import Loop
from clusterrun.policy.events import Event
from clusterrun.policy.outcome import HelperFailed, Interrupted
from clusterrun.policy.waiting import EndOfWait, Pass, StopItself, Waiting
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient

if TYPE_CHECKING:
    # A job imports one of the two.
    from clusterrun.network.membership import Membership
    from clusterrun.run.one_node import OneNode


def begin_to_join(
    local: LocalJob, relay: RelayClient, fork_server: ForkServer, loop: Loop[Event]
) -> OneNode | Membership:
    """Return the membership of this node, which begins in the loop.

    Raises:
        RendezvousError: this is node 0, and a port that it needs is in use.

    """
    job, host = local.job, local.machine.host
    # Imported while the fork server's interpreter starts.
    if job.agents == 1:
        from clusterrun.run.one_node import OneNode

        return OneNode(job, host, local.workers, relay.notice, loop)
    from msgspec.structs import replace

    from clusterrun.network.joining_node import JoiningNode, Outside, hello_of
    from clusterrun.network.membership import Membership
    from clusterrun.policy.terms import terms_of

    hello = replace(hello_of(job, host, local.workers, _versions(job)), fault=local.fault)
    outside = Outside(relay.notice, renew_lease=fork_server.renew_lease)
    token = (job.token or "").encode()
    return Membership(JoiningNode(terms_of(job), hello, token, outside), loop)


def wait_for_world(
    nodes: OneNode | Membership, loop: Loop[Event], suspend_signal: int | None
) -> World | EndOfWait:
    """Return this node's world once all nodes have joined, or what has ended the wait before.

    Raises:
        RendezvousError: the nodes contradict each other, or did not all join in time.

    """
    waiting = Waiting(suspend_signal)
    try:
        while waiting.end is None:
            match waiting.happens(loop.next_event()):
                case Pass(request):
                    loop.add_first(nodes.send(request))
                case StopItself():
                    os.kill(os.getpid(), signal.SIGSTOP)
    except LauncherError as error:
        nodes.abandon(error)
        raise
    loop.add_first(waiting.kept)
    if isinstance(waiting.end, Interrupted | HelperFailed):
        nodes.abandon(waiting.end)
    return waiting.end


def _versions(job: Job) -> Mapping[str, str]:
    """Return what can be known of the workers' versions without starting their interpreter."""
    if job.python != sys.executable:
        return {}
    from importlib import metadata

    versions = {"python": sys.version.split()[0]}
    with suppress(metadata.PackageNotFoundError):
        versions["torch"] = metadata.version("torch")
    return versions
