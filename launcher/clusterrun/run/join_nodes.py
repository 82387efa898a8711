"""Joining the nodes of a job: alone at once, or with the others by rendezvous."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterrun.agent.signal_inbox import SignalInbox
from clusterrun.job.job import Job
from clusterrun.policy.events import SignalReceived
from clusterrun.policy.messages import Verdict
from clusterrun.policy.outcome import HelperFailed, Interrupted
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.helper_processes import HelperProcesses

if TYPE_CHECKING:
    # A job imports one of the two.
    from clusterrun.rendezvous.peers import Peers
    from clusterrun.rendezvous.single_node import SingleNode


def join_nodes(
    local: LocalJob,
    inbox: SignalInbox,
    helpers: HelperProcesses,
    early: list[SignalReceived],
) -> SingleNode | Peers | Interrupted | HelperFailed | Verdict:
    """Return the nodes of the job once all have joined, or what has ended the job before.

    Signals that came meanwhile and end nothing are added to ``early``.
    """
    job, host = local.job, local.machine.host
    # Imported while the fork server's interpreter starts.
    if job.agents == 1:
        from clusterrun.rendezvous.single_node import SingleNode

        return SingleNode(job, host, local.workers, helpers.relay.notice, time.monotonic)
    from msgspec.structs import replace

    from clusterrun.policy.terms import terms_of
    from clusterrun.rendezvous.agent_hooks import AgentHooks
    from clusterrun.rendezvous.joining.join import join
    from clusterrun.rendezvous.joining.joining_node import JoiningNode, hello_of
    from clusterrun.run.joining_requests import joining_requests

    requests = joining_requests(local, helpers.relay)
    hello = replace(hello_of(job, host, local.workers, _versions(job)), fault=local.fault)
    token = (job.token or "").encode()
    watched = (helpers.relay, helpers.fork_server)
    hooks = AgentHooks(
        inbox,
        helpers.relay.notice,
        time.monotonic,
        early.append,
        renew_lease=helpers.fork_server.renew_lease,
        helpers=watched,
        requests=[requests],
    )
    try:
        return join(JoiningNode(terms_of(job), hello, token, hooks))
    finally:
        requests.close()


def _versions(job: Job) -> Mapping[str, str]:
    """Return what can be known of the workers' versions without starting their interpreter."""
    if job.python != sys.executable:
        return {}
    from importlib import metadata

    versions = {"python": sys.version.split()[0]}
    with suppress(metadata.PackageNotFoundError):
        versions["torch"] = metadata.version("torch")
    return versions
