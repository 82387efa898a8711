"""Starting the helper processes of a node: the relay, and the client of the fork server."""

from __future__ import annotations

from functools import partial

from clusterrun.domain.preparation import Prepared
from clusterrun.run.job_machine import LocalJob
from clusterrun.workers.fork_server_client import ForkServer, ForkServerClient
from clusterrun.workers.helper_processes import HelperProcesses
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import OwnOutput
from clusterrun.workers.scratch import Scratch, own_folder


def start_helpers(local: LocalJob, process: ForkServer, scratch: Scratch | None) -> HelperProcesses:
    """Start the relay; ``process`` is the fork server, which has been started already."""
    scratch = scratch or Scratch(own_folder(local.variables))
    # A terminal that is stopped stops the process that prints to it: never the agent.
    relay = RelayClient.start(OwnOutput(), scratch.path)
    fork_server = ForkServerClient(
        process,
        on_prepared=partial(_print_prepared, relay, local),
        on_slow_import=partial(_print_slow_import, relay),
    )
    return HelperProcesses(relay, fork_server, scratch)


def _print_prepared(relay: RelayClient, local: LocalJob, prepared: Prepared) -> None:
    slowed = local.workers if prepared.costs_time and local.workers > 1 else 0
    if local.resolved.verbose or prepared.complaint or slowed:
        from clusterrun.report.attempt_start import describe_prepared

        for line in describe_prepared(prepared, slowed):
            relay.notice(line)


def _print_slow_import(relay: RelayClient, name: str, seconds: float) -> None:
    relay.notice(
        f"importing {name} before workers are forked, for {seconds:.0f} s now"
        " (--preload none leaves that to each worker)"
    )
