"""A launch from start to end: inspects the machine, joins the job, runs attempts, reports."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from clusterrun.bounds import counted
from clusterrun.errors import LauncherError, MachineError
from clusterrun.job.job import Job
from clusterrun.job.output import shows_colours
from clusterrun.job.resolve import Resolved
from clusterrun.job.this_process import LOOPBACK_HINT, loopback_error
from clusterrun.loop import Loop, Priority
from clusterrun.planning.plan import NodePlan, World
from clusterrun.planning.preparation import preparation_of
from clusterrun.planning.variables import is_sole_writer
from clusterrun.policy.actions import Pause, SendToCoordinator
from clusterrun.policy.events import Event, NodeChecked, SuspensionRequested
from clusterrun.policy.outcome import HelperFailed, Interrupted, Outcome, Report, Suspended
from clusterrun.policy.waiting import WaitingNode, WaitResult
from clusterrun.processes import is_fork_patched, require_descriptors
from clusterrun.run.agent import Agent
from clusterrun.run.attempts import JobAttempts
from clusterrun.run.commands import Commands
from clusterrun.run.final_report import (
    copy_error_file,
    exit_code_and_unprinted,
    report_before_start,
    report_of,
    requeue,
    text_of,
)
from clusterrun.run.node import LocalNode, MachineSource
from clusterrun.scratch import Scratch, new_scratch_paths
from clusterrun.signals import Signals
from clusterrun.workers.fork_server.messages import Prepared
from clusterrun.workers.fork_server_client import ForkServer
from clusterrun.workers.fork_server_process import ServerProcess
from clusterrun.workers.node_workers import NodeWorkers
from clusterrun.workers.relay.client import RelayClient
from clusterrun.workers.relay.routes import LauncherOutput, LineStyle, LogLayout, Routes
from clusterrun.workers.terminal import StandardInput, Terminal

if TYPE_CHECKING:
    # A job imports only the ones that it needs.
    from clusterrun.network.membership import Membership
    from clusterrun.policy.end_report import EndReport
    from clusterrun.policy.messages import ProgramOffer
    from clusterrun.run.caller import CallingProgram
    from clusterrun.run.node_check import NodeCheck
    from clusterrun.run.single_node import SingleNodeMembership
    from clusterrun.run.suspend_hook import SuspendHook


FILES_PER_WORKER = 4
OTHER_FILES = 32

SECONDS_TO_PRINT = 2.0
"""For the relay's last lines: a stopped terminal must not delay the exit."""


class LaunchResult(NamedTuple):
    """The result of a launch."""

    code: int
    """The exit code."""
    report: Report
    unprinted: str
    """Text to print that the relay could not print."""

    def as_data(self) -> EndReport:
        """Return the result for the program that has started this command."""
        # Few commands are started by a program.
        from clusterrun.policy.end_report import EndReport

        text = text_of(self.report) + self.unprinted
        return EndReport.of_job(self.code, self.report.outcome, text)


class LaunchContext(NamedTuple):
    """This node, the helper processes of its agent, and the agent's loop."""

    node: LocalNode
    server: ForkServer
    relay: RelayClient
    scratch: Scratch
    loop: Loop[Event]
    stack: ExitStack
    """Closes everything at the end of the launch."""


def launch(
    resolved: Resolved,
    environ: Mapping[str, str],
    process: ServerProcess,
    caller: CallingProgram | None = None,
) -> LaunchResult:
    """Run the job to its end, and report the result.

    Args:
        resolved: the job, and the options of this clusterrun.
        environ: the environment of this process.
        process: the fork server, which was started before this module was imported; ended here.
        caller: the program that prints the report; None: the relay prints it.

    Raises:
        LauncherError: the job could not be started.

    """
    job = resolved.job
    with ExitStack() as stack:
        server = ForkServer(process)
        stack.callback(server.close)
        # The relay prints, because a stopped terminal stops the process that writes to it. It also
        # removes the scratch folder if this process is killed. It starts before the machine is
        # inspected, because drivers may be slow.
        scratch = Scratch(*new_scratch_paths(environ))
        relay = RelayClient.start(LauncherOutput(), *scratch.paths)
        stack.callback(relay.close, SECONDS_TO_PRINT)
        _warn_of_loopback(relay)
        node = _this_node(resolved, environ)
        plan = node.assumed_plan()
        node.check_binding(plan)
        server.orphans.helpers.add(relay.pid)
        server.notice = relay.notice
        server.on_prepared = partial(_describe_preparation, node, server)
        loop, signals = Loop[Event](time.monotonic), Signals()
        context = LaunchContext(node, server, relay, scratch, loop, stack)
        loop.watch(signals.fileno(), signals.events, Priority.SIGNALS)
        for helper in (relay, server):
            helper.run_in(loop)
        if caller is not None:
            caller.run_in(loop)
        _start_preparation(context, plan)
        offers = _program_offers(context)
        check = _node_check(context)
        checked = _wait_for_check(check, job, loop)
        world: World | WaitResult
        if isinstance(checked, NodeChecked):
            nodes = _start_to_join(context, offers, checked.fault)
            # At the end, commands are closed first. This node leaves last, when no process of the job
            # is left on it.
            processes = stack.pop_all()
            stack.callback(nodes.leave)
            stack.push(processes)
            commands = Commands(node, nodes, relay, server, loop)
            stack.callback(commands.close)
            if caller is not None:
                caller.show = commands.show_output
            world = wait_for_world(nodes, loop, job.suspending.suspend_signal)
        else:
            world = checked
        # All modules are imported, and the rest of the job may take months.
        gc.freeze()
        gc.enable()
        if isinstance(world, World):
            report = _run_job(context, nodes, commands, check, world)
        else:
            report = report_before_start(world)
        copy_error_file(report.outcome, environ)
        if caller is None:
            relay.print_text(text_of(report))
    code, unprinted = exit_code_and_unprinted(report, relay)
    is_node_zero = isinstance(world, World) and not world.node_rank
    requeued = requeue(node, report.outcome) if is_node_zero else ""
    return LaunchResult(code, report, unprinted + requeued)


# This node.


def _this_node(resolved: Resolved, environ: Mapping[str, str]) -> LocalNode:
    """Inspect this node, and check that the job can run on it.

    Raises:
        LauncherError: it can't.

    """
    node = LocalNode.of(resolved, MachineSource.here(environ))
    # The relay has four files open for each worker, and the fork server has as many while workers start.
    # This process may have five in transit over a socket, which the kernel counts against the soft limit.
    files = FILES_PER_WORKER * node.size + OTHER_FILES
    require_descriptors(files, 2 * files, counted(node.size, "worker"))
    if node.job.failures.pdb:
        # Few jobs are debugged.
        from clusterrun.run.post_mortem import check_terminal

        check_terminal(node.job)
    return node


def _warn_of_loopback(relay: RelayClient) -> None:
    if trouble := loopback_error():
        relay.notice(f"warning: {trouble}, so ranks can't connect to each other; {LOOPBACK_HINT}")


def _start_preparation(context: LaunchContext, plan: NodePlan) -> None:
    """Have the fork server import the first modules that the script imports, while the nodes join."""
    job, server = context.node.job, context.server
    preparation = preparation_of(job, plan, context.node.environment)
    if is_fork_patched() and not job.failures.pdb:
        # Few launchers are debugged.
        from clusterrun.run.debugger import follow_workers

        preparation = follow_workers(server, plan, preparation)
    if preparation is not None:
        server.prepare(preparation)


def _describe_preparation(node: LocalNode, server: ForkServer, prepared: Prepared) -> None:
    costs_time = (prepared.costs_time or prepared.not_preloaded) and node.workers > 1
    if node.job.output.verbose or prepared.must_warn or costs_time:
        from clusterrun.report.plan import describe_prepared

        for line in describe_prepared(prepared, node.workers, verbose=node.job.output.verbose):
            server.notice(line)


def _program_offers(context: LaunchContext) -> tuple[ProgramOffer, ...]:
    """Reserve the ports of the programs on this node; return them for the other nodes."""
    if not context.node.job.services:
        return ()
    # Few jobs have services.
    from clusterrun.run.reserved_ports import ReservedPorts

    ports = ReservedPorts(context.node.job.services, context.node.slots)
    context.stack.callback(ports.release)
    return ports.offers


# The check of this node.


def _node_check(context: LaunchContext) -> NodeCheck | None:
    """Return the runner of ``--check``, if there is one."""
    if not context.node.job.join.check:
        return None
    from clusterrun.run.node_check import NodeCheck

    check = NodeCheck(context.node, context.relay.print_text, context.loop)
    context.stack.callback(check.close)
    return check


def _wait_for_check(
    check: NodeCheck | None, job: Job, loop: Loop[Event]
) -> NodeChecked | WaitResult:
    """Run the check, if there is one, once on each machine; return its result, or what ended the wait."""
    is_first_task = job.tasks is None or job.tasks.local_rank == 0
    if check is None or not is_first_task:
        return NodeChecked("", loop.clock())
    check.start()
    waiting = WaitingNode(job.suspending.suspend_signal)
    while not isinstance(waiting.end, NodeChecked | WaitResult):
        if isinstance(waiting.handle(loop.next_event()), Pause):
            os.kill(os.getpid(), signal.SIGSTOP)
    loop.add_first(waiting.kept)
    return waiting.end


# Joining.


def _start_to_join(
    context: LaunchContext, offers: tuple[ProgramOffer, ...], fault: str
) -> SingleNodeMembership | Membership:
    """Return the membership of this node, which joins in the loop; ``fault`` is its failure of the check.

    Raises:
        RendezvousError: this is node 0, and a port that it needs is in use.
        MachineError: this is the only node, and it fails its check.

    """
    node, server, loop = context.node, context.server, context.loop
    job, host = node.job, node.machine.host
    if job.agents == 1:
        if fault:
            raise MachineError(f"this node fails its check: {fault}")
        from clusterrun.run.single_node import SingleNodeMembership, hello_of_single_node

        hello = replace(hello_of_single_node(job, host, node.workers), programs=offers)
        return SingleNodeMembership(job, hello, context.relay.notice, loop)
    from clusterrun.network.joining_node import JoinContext, JoiningNode, hello_of
    from clusterrun.network.membership import Membership
    from clusterrun.policy.leases import FORK_SERVER_STOP_INTERVALS
    from clusterrun.policy.settings import rendezvous_settings

    # A source tree that is not installed has no version.
    version = _installed("clusterrun") or "unknown"
    hello = replace(hello_of(job, host, node.workers, version, _versions(job)), fault=fault)
    if offers:
        from clusterrun.network.addresses import own_interfaces

        hello = replace(hello, programs=offers, interfaces=tuple(own_interfaces().values()))
    join_context = JoinContext(
        context.relay.notice,
        renew_lease=server.renew_lease,
        hold_connection=server.keep_connection,
    )
    token, settings = (job.token or "").encode(), rendezvous_settings(job)
    server.lease_grace = FORK_SERVER_STOP_INTERVALS * settings.rhythm.interval
    return Membership(JoiningNode(settings, hello, token, join_context), loop)


def wait_for_world(
    nodes: SingleNodeMembership | Membership, loop: Loop[Event], suspend_signal: int | None
) -> World | WaitResult:
    """Return this node's world once all nodes have joined, or what ended the wait before.

    Raises:
        RendezvousError: the nodes disagree, or did not all join in time.

    """
    waiting = WaitingNode(suspend_signal)
    try:
        while not isinstance(waiting.end, World | WaitResult):
            match waiting.handle(loop.next_event()):
                case SendToCoordinator(message):
                    loop.add_first(nodes.send(message))
                case Pause():
                    os.kill(os.getpid(), signal.SIGSTOP)
    except LauncherError as error:
        nodes.abandon(error)
        raise
    loop.add_first(waiting.kept)
    if isinstance(waiting.end, Interrupted | HelperFailed):
        nodes.abandon(waiting.end)
    return waiting.end


def _versions(job: Job) -> Mapping[str, str]:
    """Return the versions of Python and torch if workers run this interpreter."""
    if job.program.python != sys.executable:
        return {}
    versions = {"python": sys.version.split()[0], "torch": _installed("torch")}
    return {name: version for name, version in versions.items() if version}


def _installed(package: str) -> str | None:
    """Return the version of a package in this environment."""
    from importlib import metadata

    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


# Suspension, on node 0.


def _schedule_suspension(job: Job, loop: Loop[Event]) -> None:
    """Suspend the job ``--suspend-before`` seconds before its scheduler ends it, if that is set."""
    before, ends_at = job.suspending.suspend_before, job.ends_at
    if before is None or ends_at is None:
        return
    end = time.strftime("%H:%M:%S", time.localtime(ends_at))
    by = (
        f"{job.origin('suspend_before')} {before:g}:"
        f" the job ends at {end} ({job.origin('ends_at')})"
    )
    due = ends_at - before - time.time() + time.monotonic()
    loop.at("end of the job", due, lambda now: SuspensionRequested(by, now))


def _suspend_hook(context: LaunchContext) -> SuspendHook | None:
    """Start ``--suspend-hook``, if there is one."""
    command = context.node.job.suspending.suspend_hook
    if not command:
        return None
    from clusterrun.run.suspend_hook import SuspendHook

    environment = context.node.environment
    hook = SuspendHook(command, environment, context.relay.notice, context.loop)
    context.stack.callback(hook.close)
    return hook


# The job.


def _run_job(
    context: LaunchContext,
    nodes: SingleNodeMembership | Membership,
    commands: Commands,
    check: NodeCheck | None,
    world: World,
) -> Report:
    """Run the job from this node's first world to its end.

    Raises:
        LauncherError: this node can't continue.

    """
    node, server, relay, scratch, loop, stack = context
    commands.nodes_joined()
    hook = None
    if world.node_rank == 0:
        _schedule_suspension(node.job, loop)
        hook = _suspend_hook(context)
    stdin = StandardInput(Terminal.in_foreground(0), node.size)
    routes = _routes(node, world)
    workers = NodeWorkers(server, relay, scratch, standard_input=stdin, routes=routes, loop=loop)
    stack.callback(workers.close)
    attempts = JobAttempts(node, workers, relay, commands.progress, check)
    stack.callback(attempts.close)
    agent = Agent(attempts, workers, nodes, commands, loop=loop, wall_clock=time.time)
    end = _run_attempts(agent, nodes, loop, world, node.job.suspending.suspend_signal)
    if not isinstance(end, Outcome):
        report = report_before_start(end)
        attempts.job_ended(report.outcome)
        return report
    attempts.job_ended(end)
    if hook is not None and isinstance(end.reason, Suspended):
        # All ranks have saved, and the nodes are still allocated.
        problem = hook.call_ready()
        if problem:
            relay.notice(f"warning: {problem}")
    return report_of(end, node, routes, stdin)


def _run_attempts(
    agent: Agent,
    nodes: SingleNodeMembership | Membership,
    loop: Loop[Event],
    world: World,
    suspend_signal: int | None,
) -> Outcome | WaitResult:
    """Run attempts until the job ends, or until this node's wait to be readmitted ends.

    Raises:
        LauncherError: this node can't continue.

    """
    while True:
        outcome = agent.run(world)
        if outcome is not None:
            return outcome
        nodes.rejoin()
        joined = wait_for_world(nodes, loop, suspend_signal)
        if not isinstance(joined, World):
            return joined
        world = joined


def _routes(node: LocalNode, world: World) -> Routes:
    """Return where the workers' output goes, and in which style."""
    job = node.job
    has_prefix = bool(job.output.log_line_prefix_template)
    style = LineStyle(
        raw=not has_prefix and is_sole_writer(job, node.size),
        colour=shows_colours(node.variables),
        # mpirun gives each task a terminal, and merges what they print.
        merged=job.workers.cluster == "openmpi",
    )
    if job.files.log_dir is None:
        return Routes(job, None, style)
    folder = Path(job.files.log_dir).absolute()
    torchrun_folder = f"{world.run_id}_{os.urandom(4).hex()}" if job.as_torchrun else ""
    layout = LogLayout(folder, world.run_id, job.workerlog, torchrun_folder, world.kept_attempts)
    return Routes(job, layout, style)
