"""The table of contents of a launch: inspect, join, plan, start, supervise, report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.agent.signal_inbox import SignalInbox
from clusterrun.agent.state import Rules
from clusterrun.agent.supervisor import Supervisor
from clusterrun.domain.job import JobSpec
from clusterrun.domain.machine import Machine
from clusterrun.domain.outcome import HelperFailed, Interrupted, Outcome, Succeeded, WorkerFailed
from clusterrun.domain.plan import NodePlan
from clusterrun.domain.preparation import Preparation, Prepared
from clusterrun.domain.streams import Std
from clusterrun.domain.world import World
from clusterrun.errors import ExitCode, LauncherError
from clusterrun.planning.binding.strict_binding import strict_error
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.preparation import preparation_of
from clusterrun.planning.variables.colours import has_output_to_itself
from clusterrun.planning.variables.worker_variables import environment_before
from clusterrun.planning.worker_count import local_size
from clusterrun.rendezvous.assumed import assumed_world, lone_worker_world
from clusterrun.run.attempts import JobAttempts
from clusterrun.run.job_machine import job_machine, source_of
from clusterrun.sources.colours import shows_colours
from clusterrun.sources.resolve import Resolved
from clusterrun.workers.fork_server_client import ForkServerClient
from clusterrun.workers.fork_server_process import ForkServerProcess
from clusterrun.workers.relay.destinations import Screen
from clusterrun.workers.relay.log_layout import LogLayout
from clusterrun.workers.relay.relay_client import RelayClient
from clusterrun.workers.relay.routes import Routes
from clusterrun.workers.scratch import Scratch
from clusterrun.workers.stale_scratch import own_folder
from clusterrun.workers.standard_input import StandardInput
from clusterrun.workers.terminal import Terminal
from clusterrun.workers.worker_group import SECONDS_TO_PRINT, WorkerGroup

if TYPE_CHECKING:
    # A job imports what it needs of these.
    from clusterrun.agent.event_log import Chronicle
    from clusterrun.rendezvous.peers import Peers
    from clusterrun.rendezvous.single_node import SingleNode

PARENTS_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Set for us by a scheduler that wants to know why we failed, as torchrun's parents do."""


def plan_lone_worker(resolved: Resolved, environ: Mapping[str, str]) -> NodePlan:
    """Return the plan of the one worker that this process is to become.

    Raises:
        LauncherError: it would not be one worker, or rank 0's port is in use.

    """
    job = resolved.job
    machine = job_machine(resolved, source_of(resolved, environ))
    local_size(job, machine)
    return _plan_ahead(resolved, machine, lone_worker_world(job), environ)


def launch(
    resolved: Resolved, environ: Mapping[str, str], process: ForkServerProcess
) -> tuple[int, str]:
    """Run the job to its end, and tell the user how it ended.

    Args:
        resolved: the job, and what was said about this call of clusterrun.
        environ: the environment of this process.
        process: the fork server's, started in the job's environment; ended here.

    Returns:
        The exit code, and what is to be printed that the relay could not print.

    Raises:
        LauncherError: the job could not be started.

    """
    job = resolved.job
    inbox = SignalInbox()
    with ExitStack() as cleanup:
        cleanup.callback(process.close)
        machine = job_machine(resolved, source_of(resolved, environ))
        count = local_size(job, machine)
        preparation = _preparation(resolved, machine, count, environ)
        scratch = Scratch(own_folder(environ))
        # A terminal that is stopped stops the process that prints to it: never the agent.
        relay = RelayClient.start(_screen(job, count, environ), scratch.path)
        cleanup.callback(relay.close, SECONDS_TO_PRINT)
        fork_server = ForkServerClient(
            process,
            on_prepared=partial(_print_prepared, relay, verbose=resolved.verbose),
            on_slow_import=partial(_print_slow_import, relay),
        )
        if preparation is not None:
            fork_server.prepare(preparation)
        nodes = _meet(job, machine, count, inbox, relay)
        if isinstance(nodes, Interrupted):
            from clusterrun.report.outcome import explain_wait

            relay.say(explain_wait(nodes))
            return Outcome(nodes, attempt=0, fates=(), survivors=()).exit_code, ""
        cleanup.callback(nodes.leave)
        routes = _routes(job, nodes.run_id)
        standard_input = StandardInput(job.stdin_rank, Terminal.in_foreground(0), count)
        workers = WorkerGroup(fork_server, relay, standard_input, routes, scratch)
        cleanup.callback(workers.close)
        chronicle = _chronicle(job, workers)
        attempts = JobAttempts(resolved, machine, nodes, workers, environ)
        attempts.chronicle = chronicle
        supervisor = Supervisor(attempts, workers, nodes, inbox, time)
        outcome = _supervise(supervisor, _rules(job, workers), chronicle)
        _copy_error_file(outcome, environ)
        alone = has_output_to_itself(job, count)
        report = _report(outcome, routes, standard_input, alone=alone)
        workers.say(report)
    return _after_the_relay(outcome, report, relay)


def _meet(
    job: JobSpec, machine: Machine, workers: int, inbox: SignalInbox, relay: RelayClient
) -> SingleNode | Peers | Interrupted:
    """Return the other nodes once all are there, or the signal that came first."""

    def notice(text: str) -> None:
        relay.say(f"clusterrun: {text}")

    # What the job needs of the two, while the fork server's interpreter starts.
    if job.agents == 1:
        from clusterrun.rendezvous.single_node import SingleNode

        return SingleNode(job, machine.host, workers, notice, time.monotonic)
    from clusterrun.rendezvous.agent_hooks import AgentHooks
    from clusterrun.rendezvous.joining.join import join
    from clusterrun.rendezvous.joining.joining_node import JoiningNode, hello_of
    from clusterrun.rendezvous.joining.settings import settings_of
    from clusterrun.rendezvous.names.own_host_name import resolves_for_others

    hooks = AgentHooks(inbox, notice, time.monotonic)
    hello = hello_of(job, machine.host, workers, _versions(job))
    token = (job.token.value or "").encode()
    nodes = join(JoiningNode(settings_of(job), hello, token, hooks))
    if not isinstance(nodes, Interrupted) and resolves_for_others(machine.host, time.monotonic):
        nodes.interface = ""
    return nodes


def _preparation(
    resolved: Resolved, machine: Machine, workers: int, environ: Mapping[str, str]
) -> Preparation | None:
    """Return what the fork server prepares while the nodes meet; None if the job spawns.

    Raises:
        LauncherError: the job can't be run here as described.

    """
    job = resolved.job
    plan = _plan_ahead(resolved, machine, assumed_world(job, workers), environ)
    return preparation_of(job, plan, environment_before(job, environ, resolved.unset))


def _plan_ahead(
    resolved: Resolved, machine: Machine, world: World, environ: Mapping[str, str]
) -> NodePlan:
    """Return what is planned before any worker starts; a strict job's binding is tried out."""
    job = resolved.job
    plan = plan_node(job, machine, world, unset=resolved.unset, error_files=None, environ=environ)
    if job.numa_strict.value:
        _try_binding(job, plan)
    return plan


def _try_binding(job: JobSpec, plan: NodePlan) -> None:
    from clusterrun.workers.binding_trial import binding_failures

    troubles = binding_failures(plan)
    if troubles:
        raise strict_error(job, plan.host, troubles)


def _print_prepared(relay: RelayClient, prepared: Prepared, *, verbose: bool) -> None:
    if verbose or prepared.complaint:
        from clusterrun.report.attempt_start import describe_prepared

        for line in describe_prepared(prepared):
            relay.say(f"clusterrun: {line}")


def _print_slow_import(relay: RelayClient, name: str, seconds: float) -> None:
    relay.say(
        f"clusterrun: importing {name} before workers are forked, for {seconds:.0f} s now"
        " (--preload none leaves that to each worker)"
    )


def _versions(job: JobSpec) -> Mapping[str, str]:
    """Return what can be known of the workers' versions without starting their interpreter."""
    if job.python.value != sys.executable:
        return {}
    from importlib import metadata

    versions = {"python": sys.version.split()[0]}
    with suppress(metadata.PackageNotFoundError):
        versions["torch"] = metadata.version("torch")
    return versions


def _routes(job: JobSpec, run_id: str) -> Routes:
    if job.log_dir.value is None:
        return Routes(job, None)
    folder = Path(job.log_dir.value).absolute()
    torchrun_folder = f"{run_id}_{os.urandom(4).hex()}" if job.as_torchrun.value else ""
    return Routes(job, LogLayout(folder, run_id, job.workerlog.value, torchrun_folder))


def _screen(job: JobSpec, workers: int, environ: Mapping[str, str]) -> Screen:
    colour = shows_colours(environ)
    asked = bool(job.log_line_prefix_template.value)
    prefix = asked or not has_output_to_itself(job, workers)
    # mpirun gives each task a terminal, and merges what they print.
    merged = job.cluster.value == "openmpi"
    return Screen(
        stdout=1,
        stderr=2,
        colour=colour,
        prefix=prefix,
        merged=merged,
        progress_interval=job.progress_interval.value,
    )


def _chronicle(job: JobSpec, workers: WorkerGroup) -> Chronicle | None:
    """Return who records what happens, where that is asked for."""
    if job.events.value is None:
        return None
    from clusterrun.agent.event_log import Chronicle

    path = str(Path(job.events.value).absolute())

    def write(node_rank: int, line: str) -> None:
        workers.record(Path(path.replace("%n", str(node_rank))), line)

    return Chronicle(write, time.monotonic, time.time() - time.monotonic())


def _supervise(supervisor: Supervisor, rules: Rules, chronicle: Chronicle | None) -> Outcome:
    """Return how the job ended, once that is recorded."""
    if chronicle is None:
        return supervisor.run(rules)
    supervisor.note = chronicle.notes
    try:
        outcome = supervisor.run(rules)
    except LauncherError as error:
        chronicle.breaks_off(error)
        raise
    chronicle.ends(outcome)
    return outcome


def _rules(job: JobSpec, workers: WorkerGroup) -> Rules:
    return Rules(grace=job.shutdown_timeout.value, foreground=workers.foreground)


def _report(outcome: Outcome, routes: Routes, standard_input: StandardInput, *, alone: bool) -> str:
    if isinstance(outcome.reason, Succeeded) and not outcome.survivors:
        return ""
    from clusterrun.report.outcome import explain

    # What a worker of another node printed went to that node's terminal.
    alone = alone and _is_of_this_node(outcome) and routes.shows(Std.ERR, 0, 0)
    return explain(
        outcome,
        already_shown=alone,
        hidden=_hidden(outcome, routes),
        had_input=_had_input(outcome, standard_input),
    )


def _after_the_relay(outcome: Outcome, report: str, relay: RelayClient) -> tuple[int, str]:
    """Return the exit code, and what the relay has not printed."""
    code: int = outcome.exit_code
    if relay.losses == ():
        return code, ""
    from clusterrun.report.lost_output import describe_losses, describe_silent_relay

    if relay.losses is None:
        known = isinstance(outcome.reason, HelperFailed)
        why = "" if known else f"{describe_silent_relay(relay.how_it_ended)}\n"
        return code, f"{why}{report}"
    if code == ExitCode.SUCCESS:
        return ExitCode.MACHINE, describe_losses(relay.losses, ExitCode.MACHINE)
    return code, describe_losses(relay.losses, None)


def _hidden(outcome: Outcome, routes: Routes) -> str:
    """Return what kept the lines of the worker that failed off the screen; "" if nothing did."""
    cause, tasks = outcome.cause, routes.job.tasks.value
    if cause is None:
        return ""
    if tasks is None:
        return routes.hidden_by(cause.rank, cause.local_rank)
    # Each clusterrun counts its one worker as 0, and knows no other task's place on its node.
    return routes.hidden_by(cause.rank, tasks.local_rank if cause.rank == tasks.rank else None)


def _had_input(outcome: Outcome, standard_input: StandardInput) -> bool:
    """Return whether the worker that failed could read standard input."""
    return outcome.cause is None or standard_input.is_read_by(outcome.cause.rank)


def _is_of_this_node(outcome: Outcome) -> bool:
    cause = outcome.cause
    return cause is not None and any(fate.rank == cause.rank for fate in outcome.fates)


def _copy_error_file(outcome: Outcome, environ: Mapping[str, str]) -> None:
    """Hand the first failure's error file on to whoever started us and asked for it."""
    wanted = environ.get(PARENTS_ERROR_FILE)
    if wanted and isinstance(outcome.reason, WorkerFailed) and outcome.reason.cause.error:
        # Where it can't be written, the report still says the same to people.
        with suppress(OSError):
            Path(wanted).write_text(outcome.reason.cause.error, encoding="utf-8")
