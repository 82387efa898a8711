"""The table of contents of a launch: inspect, plan ahead, join, supervise, report."""

import gc
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from msgspec import Struct

from clusterrun.domain.world import World
from clusterrun.job.resolve import Resolved
from clusterrun.loop import Loop, Rank
from clusterrun.planning.preparation import Preparation
from clusterrun.policy.events import Event
from clusterrun.policy.outcome import Report
from clusterrun.run.final_report import (
    copy_error_file,
    exit_code_and_rest,
    report_of,
    report_of_wait,
    text_of,
)
from clusterrun.run.job_machine import LocalJob, local_job
from clusterrun.run.job_requests import JobRequests
from clusterrun.run.join_nodes import begin_to_join, wait_for_world
from clusterrun.run.plan_ahead import plan_preparation
from clusterrun.run.relay_start import start_relay
from clusterrun.run.requeueing import requeue
from clusterrun.run.supervision import routes_of, supervise
from clusterrun.signals import Signals
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.fork_server_process import ServerProcess
from clusterrun.workers.node_workers import SECONDS_TO_PRINT, NodeWorkers
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import OwnOutput, ToCaller
from clusterrun.workers.scratch import Scratch, own_folder
from clusterrun.workers.terminal import StandardInput, Terminal

if TYPE_CHECKING:
    # Most jobs have no caller.
    from clusterrun.run.lifeline import Lifeline


class Caller(Struct):
    """The program that has called this agent, if it was not a command line."""

    lifeline: "Lifeline"
    place: OwnOutput | ToCaller
    """Where lines are shown."""
    warm_socket: str
    """Where the caller's own warm fork server listens; "" if it has none."""
    report: Report | None = None
    """How the job has ended; None before its end."""
    may_write: bool = True
    """No frame of the relay's has been begun: it has not run, or has ended in order."""


def launch(
    resolved: Resolved,
    environ: Mapping[str, str],
    process: ServerProcess | None,
    caller: Caller | None = None,
) -> tuple[int, str]:
    """Run the job to its end, and report how it ended.

    Args:
        resolved: the job, and the options of this call of clusterrun.
        environ: the environment of this process.
        process: the fork server's, started in the job's environment; ended here. None: it is to be
            warm, and an earlier job may have left one.
        caller: has the end of the job, and reports it; None: the report is printed.

    Returns:
        The exit code, and what is to be printed that the relay could not print.

    Raises:
        LauncherError: the job could not be started.

    """
    with ExitStack() as cleanup:
        fork_server = None if process is None else ForkServer.started(process)
        if fork_server is not None:
            cleanup.callback(fork_server.close)
        local = local_job(resolved, environ)
        preparation = plan_preparation(local)
        if fork_server is None:
            fork_server = _warm_fork_server(local, preparation, caller)
            cleanup.callback(fork_server.close)
        loop, inbox = Loop[Event](time.monotonic), Signals()
        loop.watch(inbox.fileno(), inbox.events, Rank.SIGNALS)
        scratch = Scratch(own_folder(local.variables))
        relay = start_relay(local, fork_server, scratch, caller.place if caller else OwnOutput())
        cleanup.callback(_close_relay, relay, caller)
        for helper in (relay, fork_server):
            helper.run_in(loop)
        if preparation is not None:
            fork_server.prepare(preparation)
        if caller is not None:
            caller.lifeline.run_in(loop, fork_server.renew_own_lease)
        nodes = begin_to_join(local, relay, fork_server, loop)
        cleanup.callback(nodes.leave)
        requests = JobRequests(local, nodes, relay, fork_server, loop=loop, cleanup=cleanup)
        world = wait_for_world(nodes, loop, local.job.suspending.suspend_signal)
        # All is imported: what comes now may last for months.
        gc.freeze()
        gc.enable()
        if not isinstance(world, World):
            report = report_of_wait(world)
        else:
            view = requests.job_begins(world)
            routes = routes_of(local, world)
            stdin = StandardInput(Terminal.in_foreground(0), local.workers)
            workers = NodeWorkers(
                fork_server, relay, scratch, standard_input=stdin, routes=routes, loop=loop
            )
            cleanup.callback(workers.close)
            outcome = supervise(
                local,
                nodes,
                workers,
                relay,
                loop=loop,
                world=world,
                view=view,
                requests=requests,
            )
            requests.job_ended(outcome)
            report = report_of(outcome, local, routes, stdin)
        copy_error_file(report.outcome, environ)
        if caller is None:
            relay.say(text_of(report))
        else:
            caller.report = report
    exit_code, unprinted = exit_code_and_rest(report, relay)
    is_node_zero = isinstance(world, World) and not world.node_rank
    return exit_code, unprinted + (requeue(local, report.outcome) if is_node_zero else "")


def _close_relay(relay: RelayClient, caller: Caller | None) -> None:
    if caller is not None:
        caller.may_write = False
    relay.close(SECONDS_TO_PRINT)
    if caller is not None:
        caller.may_write = relay.is_drained


def _warm_fork_server(
    local: LocalJob, preparation: Preparation | None, caller: Caller | None
) -> ForkServer:
    # Few jobs have one.
    from clusterrun.run.warm_start import warm_fork_server

    return warm_fork_server(local, preparation, caller.warm_socket if caller else "")
