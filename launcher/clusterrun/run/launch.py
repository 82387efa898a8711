"""The table of contents of a launch: inspect, plan ahead, join, supervise, report."""

import gc
from collections.abc import Mapping
from contextlib import ExitStack

from clusterrun.agent.signal_inbox import SignalInbox
from clusterrun.domain.outcome import HelperFailed, Interrupted
from clusterrun.planning.worker_count import local_size
from clusterrun.run.final_report import (
    JobEnd,
    copy_error_file,
    end_while_joining,
    exit_code_and_rest,
    report_of,
)
from clusterrun.run.helper_processes import start_helpers
from clusterrun.run.job_machine import LocalJob, job_machine, source_of
from clusterrun.run.join_nodes import join_nodes
from clusterrun.run.plan_ahead import plan_preparation
from clusterrun.run.supervision import routes_of, supervise
from clusterrun.sources.resolve import Resolved
from clusterrun.workers.fork_server_process import ForkServerProcess
from clusterrun.workers.standard_descriptors import StandardInput
from clusterrun.workers.terminal import Terminal
from clusterrun.workers.worker_group import SECONDS_TO_PRINT, WorkerGroup


def launch(
    resolved: Resolved, environ: Mapping[str, str], process: ForkServerProcess
) -> tuple[int, str]:
    """Run the job to its end, and print its report.

    Args:
        resolved: the job, and the options of this call of clusterrun.
        environ: the environment of this process.
        process: the fork server's, started in the job's environment; ended here.

    Returns:
        The exit code, and what is to be printed that the relay could not print.

    Raises:
        LauncherError: the job could not be started.

    """
    inbox = SignalInbox()
    with ExitStack() as cleanup:
        cleanup.callback(process.close)
        machine = job_machine(resolved, source_of(resolved, environ))
        local = LocalJob(resolved, environ, machine, local_size(resolved.job, machine))
        preparation = plan_preparation(local)
        helpers = start_helpers(local, process)
        cleanup.callback(helpers.relay.close, SECONDS_TO_PRINT)
        if preparation is not None:
            helpers.fork_server.prepare(preparation)
        nodes = join_nodes(local, inbox, helpers)
        # All is imported: what comes now may last for months.
        gc.freeze()
        gc.enable()
        if isinstance(nodes, Interrupted | HelperFailed):
            end = end_while_joining(nodes)
        else:
            cleanup.callback(nodes.leave)
            routes = routes_of(local.job, nodes.run_id)
            stdin = StandardInput(local.job.stdin_rank, Terminal.in_foreground(0), local.workers)
            workers = WorkerGroup(
                helpers.fork_server, helpers.relay, stdin, routes, helpers.scratch
            )
            cleanup.callback(workers.close)
            outcome = supervise(local, nodes, workers, inbox)
            end = JobEnd(outcome, report_of(outcome, local, routes, stdin))
        copy_error_file(end.outcome, environ)
        helpers.print_report(end.report)
    return exit_code_and_rest(end, helpers.relay)
