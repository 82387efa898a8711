"""Starting the relay, by which the fork server's client then speaks to the user."""

from __future__ import annotations

from functools import partial

from clusterrun.planning.preparation import Prepared
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import OwnOutput
from clusterrun.workers.scratch import Scratch


def start_relay(local: LocalJob, fork_server: ForkServer, scratch: Scratch) -> RelayClient:
    """Start the relay, which removes ``scratch`` if this process is killed."""
    # A terminal that is stopped stops the process that prints to it: never the agent.
    relay = RelayClient.start(OwnOutput(), scratch.path)
    fork_server.orphans.ours.add(relay.pid)
    fork_server.say = relay.notice
    fork_server.on_prepared = partial(_print_prepared, local, fork_server)
    return relay


def _print_prepared(local: LocalJob, fork_server: ForkServer, prepared: Prepared) -> None:
    slowed = local.workers if prepared.costs_time and local.workers > 1 else 0
    if local.resolved.verbose or prepared.complaint or slowed:
        from clusterrun.report.plan import describe_prepared

        for line in describe_prepared(prepared, slowed):
            fork_server.say(line)
    if fork_server.stay is not None and not (prepared.in_place or fork_server.stay["is_owned"]):
        keep_warm = local.job.origin("keep_warm")
        fork_server.say(f"{keep_warm}: workers can't be forked, so that nothing stays")
