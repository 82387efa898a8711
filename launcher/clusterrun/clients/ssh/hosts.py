"""Run one job on several hosts by ssh, from the first connection to the end of the last one.

Each host runs the ordinary command. No worker starts before all nodes have joined, so a host that can't
be reached ends the job before it begins. Later, nodes detect by themselves that another node is lost;
this process stops those that do not end in time.
"""

import gc
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from shutil import which
from typing import Any, NoReturn, Protocol

from msgspec.structs import replace

from clusterrun.bounds import as_text, counted
from clusterrun.clients.ssh.console import HostsConsole
from clusterrun.clients.ssh.faults import (
    FailedConnection,
    HostFault,
    describe_faults,
    diagnose,
    printable_tail,
)
from clusterrun.clients.ssh.host import ERR, Host
from clusterrun.clients.ssh.remote import (
    host_commands,
    interpreter_lines,
    interpreters_of,
    ssh_command,
)
from clusterrun.descriptor_output import open_output
from clusterrun.errors import (
    ExitCode,
    LauncherError,
    RendezvousError,
    UsageError,
    exit_code_of_signal,
)
from clusterrun.job.resolve import Resolved
from clusterrun.job.sources import CommandLine
from clusterrun.job.ssh_targets import SshTargets
from clusterrun.loop import NEVER
from clusterrun.policy.end_report import SHOW_OUTPUT, EndReport
from clusterrun.signals import ENDING_SIGNALS, SignalReceived, Signals, signal_name

MAX_CONNECTING = 10
"""Connections that are not ready; sshd refuses more than 10 before login (sshd_config(5), MaxStartups)."""

SECONDS_TO_BE_READY = 30.0
"""For each host, including its login shell."""

SECONDS_TO_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0

SECONDS_TO_AGREE = 5.0
"""After heartbeat timeout and grace period, so all nodes know that the job has ended."""

SECONDS_BETWEEN_CHECKS = 1.0


class Caller(Protocol):
    """The program that has started this command (``run.caller``)."""

    show: Callable[[Callable[[], object], float], Iterable[Any]]
    """Makes the output of workers appear; set by ``SshJob``."""

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once it is gone."""
        ...

    def events(self, now: float) -> Iterable[object]:
        """Return the signals that the caller has sent."""
        ...

    def ended(self, report: EndReport) -> None:
        """Report the end."""
        ...


def launch_over_ssh(
    resolved: Resolved,
    over_ssh: SshTargets,
    line: CommandLine,
    environ: Mapping[str, str],
    caller: Caller | None,
) -> int:
    """Run the job on all hosts; return its exit code.

    Args:
        resolved: the job.
        over_ssh: the hosts.
        line: the command line.
        environ: the environment of this process.
        caller: gets the report; if it is None, the report is printed.

    Raises:
        UsageError: ssh is not installed, or a host can't run the job; nothing was started.
        RendezvousError: a host can't be reached; nothing was started.

    """
    commands = list(host_commands(resolved, over_ssh, line, environ))
    ssh = which("ssh", path=environ.get("PATH"))
    if ssh is None:
        raise UsageError(
            f"{over_ssh.launcher.origin} is ssh, but there is no program ssh on PATH",
            "install OpenSSH; on Debian:\n  apt-get install openssh-client",
        )
    interpreters = interpreters_of(resolved.job)
    lines = interpreter_lines(interpreters)
    timeout = resolved.job.failures.heartbeat_timeout
    hosts = [
        Host(rank, name, ssh_command(ssh, name, over_ssh.options, timeout), lines, command)
        for rank, (name, command) in enumerate(zip(over_ssh.hosts, commands, strict=True))
    ]
    gc.enable()
    outputs = open_output(1, "stdout"), open_output(2, "stderr")
    with (
        closing(HostsConsole(*outputs)) as console,
        closing(SshJob(resolved, hosts, console, interpreters[0], caller)) as job,
    ):
        return job.run()


class SshJob:
    """A job on several hosts, with this process's console and signals."""

    def __init__(
        self,
        resolved: Resolved,
        hosts: Sequence[Host],
        console: HostsConsole,
        interpreter: str,
        caller: Caller | None,
    ) -> None:
        """Start to handle signals, which no longer end this process.

        Args:
            resolved: the job.
            hosts: by rank.
            console: for output of hosts and for messages.
            interpreter: the path that hosts try first.
            caller: the program that has started this command, if any.

        """
        job = resolved.job
        self._caller = caller
        if caller is not None:
            caller.show = self._show_all
        self._on_shown: Callable[[], object] | None = None
        """Called once all hosts have answered ``SHOW_OUTPUT``."""
        self._shown_before: dict[Host, int] = {}
        """By host, ``shown_count`` when ``SHOW_OUTPUT`` was sent."""
        self._hosts = hosts
        self._console = console
        self._interpreter = interpreter
        self._survives_node_loss = job.survives_node_loss
        self._heartbeat_timeout: float = job.failures.heartbeat_timeout
        self._seconds_to_stop: float = (
            self._heartbeat_timeout + job.failures.shutdown_timeout + SECONDS_TO_AGREE
        )
        self._inbox = Signals()
        self._began_at = time.monotonic()
        self._notice_at = self._began_at + SECONDS_TO_NOTICE
        self._all_ready = False
        self._faults: dict[str, HostFault] = {}
        self._signal: int | None = None
        """The first signal that ends the job."""
        self._lost: set[Host] = set()
        self._stop_at = self._give_up_at = NEVER

    def close(self) -> None:
        for host in self._hosts:
            host.stop()

    def run(self) -> int:
        """Run the job until the last host has ended, and report once; return its exit code.

        Raises:
            UsageError: hosts were reached, but can't run the job.
            RendezvousError: a host was not reached.

        """
        while not all(host.has_ended for host in self._hosts):
            self._start_connections()
            self._wait(SECONDS_BETWEEN_CHECKS)
            self._check_readiness()
            # Hosts that still connect are not lost, even if others already have a fault.
            if self._all_ready or self._give_up_at != NEVER:
                self._check_running()
        if self._signal is not None and not self._all_ready:
            self._console.print(
                f"clusterrun: received {signal_name(self._signal)} before any worker was started"
            )
            return exit_code_of_signal(self._signal)
        if self._faults:
            self._raise_faults()
        return self._report()

    # Until all hosts are ready.

    @property
    def _is_cancelled(self) -> bool:
        """Whether the job was given up before all hosts were ready; no worker has started then."""
        return bool(self._faults) or (self._signal is not None and not self._all_ready)

    def _start_connections(self) -> None:
        waiting = [host for host in self._hosts if host.is_pending and not host.is_started]
        connecting = [host for host in self._hosts if host.is_pending and host.is_started]
        for host in waiting[: max(0, MAX_CONNECTING - len(connecting))]:
            if self._signal is None:
                host.start()
            else:
                host.cancel()

    def _check_readiness(self) -> None:
        now = time.monotonic()
        for host in self._hosts:
            if host.name not in self._faults and (fault := self._find_fault(host, now)):
                self._faults[host.name] = fault
                host.stop()
        pending = [host for host in self._hosts if host.is_pending]
        self._all_ready |= not pending and not self._is_cancelled
        # After a fault, the other hosts' faults are awaited, to be in the same error.
        if self._is_cancelled and (self._signal is not None or not pending):
            for host in self._hosts:
                host.close_lifeline()
            for host in pending:
                host.stop()
            self._give_up_at = min(self._give_up_at, now + self._seconds_to_stop)
        elif pending and now > self._notice_at:
            self._notice_at = now + SECONDS_BETWEEN_NOTICES
            self._console.print(_progress_notice(pending, now - self._began_at))

    def _find_fault(self, host: Host, now: float) -> HostFault | None:
        """Return why a host can't take part, as far as is known."""
        if host.report is not None and host.report.reason == UsageError.__name__:
            return HostFault(host.report.message, host.report.hint, is_mistake=True)
        is_late = host.is_started and now - host.started_at > SECONDS_TO_BE_READY
        if host.is_ready or not (host.has_ended or is_late) or not host.is_started:
            return None
        return diagnose(
            FailedConnection(
                host=host.name,
                python=self._interpreter,
                stage=host.stage,
                exit_code=host.exit_code,
                seconds=SECONDS_TO_BE_READY,
                shell_output=printable_tail(host.shell_output),
                errors=printable_tail(host.errors),
            )
        )

    def _raise_faults(self) -> NoReturn:
        in_order = {
            host.name: self._faults[host.name] for host in self._hosts if host.name in self._faults
        }
        is_mistake = all(fault.is_mistake for fault in in_order.values())
        error: type[LauncherError] = UsageError if is_mistake else RendezvousError
        raise error(*describe_faults(in_order, len(self._hosts)))

    # Once all hosts are ready.

    def _check_running(self) -> None:
        now = time.monotonic()
        running = [host for host in self._hosts if not host.has_ended]
        for host in self._hosts:
            if host.has_ended and host.report is None and host not in self._lost:
                self._lose_host(host, "has closed the connection")
        if not self._survives_node_loss:
            # The other nodes detect a failure or loss by themselves, so they get time for it.
            failed = any(each.report is not None and each.report.code for each in self._hosts)
            after_failure = self._seconds_to_stop if failed else NEVER
            after_loss = self._heartbeat_timeout if self._lost else NEVER
            self._stop_at = min(self._stop_at, now + after_failure, now + after_loss)
        if self._console.is_gone and self._signal is None:
            # Like any command whose standard output is closed.
            self._forward_signal(signal.SIGHUP)
        if now > self._give_up_at:
            for host in running:
                self._lose_host(host, "does not end")
                host.stop()
        elif now > self._stop_at and self._give_up_at == NEVER:
            names = ", ".join(host.name for host in running)
            self._console.print(f"clusterrun: stopping what still runs on {names}")
            for host in running:
                host.close_lifeline()
            self._give_up_at = now + self._seconds_to_stop

    def _lose_host(self, host: Host, how: str) -> None:
        self._lost.add(host)
        if not self._is_cancelled:
            self._console.print(
                f"clusterrun: {host.name} {how}; processes of the job there will exit on their own"
            )

    def _forward_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._console.print("clusterrun: a job that ssh has started can't be paused")
            return
        if number == signal.SIGCONT:
            return
        if number in ENDING_SIGNALS:
            self._signal = self._signal or number
        running = [host for host in self._hosts if not host.has_ended]
        # On SIGQUIT, one node collects the stacks of all.
        for host in running[:1] if number == signal.SIGQUIT else running:
            host.signal(number)

    def _report(self) -> int:
        """Print the report once; return the exit code."""
        reports = {host.name: host.report for host in self._hosts if host.report is not None}
        code = job_exit_code(
            [each.code for each in reports.values()], survives_node_loss=self._survives_node_loss
        )
        agreed = {name: each for name, each in reports.items() if each.code == code}
        report = merge_reports(agreed, len(self._hosts)) or EndReport(
            code=code,
            reason="NodeLost",
            text="clusterrun: error: all connections are lost",
        )
        if self._caller is None:
            self._console.print(report.text)
        else:
            self._caller.ended(report)
        if self._console.is_gone and code in {0, exit_code_of_signal(signal.SIGHUP)}:
            return exit_code_of_signal(signal.SIGPIPE)
        return code

    def _wait(self, seconds: float) -> None:
        """Wait for events for at most ``seconds``, and handle them."""
        is_read = not self._console.is_congested
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            if self._caller is not None and self._caller.fileno() >= 0:
                selector.register(self._caller, selectors.EVENT_READ)
            for output in self._console.waiting:
                selector.register(output, selectors.EVENT_WRITE)
            for host in self._hosts:
                for descriptor in host.writing:
                    selector.register(descriptor, selectors.EVENT_WRITE)
                for descriptor in host.reading if is_read else ():
                    selector.register(descriptor, selectors.EVENT_READ)
            selector.select(seconds)
        events: list[object] = [*self._inbox.events(time.monotonic())]
        if self._caller is not None and self._caller.fileno() >= 0:
            events += self._caller.events(time.monotonic())
        for event in events:
            if isinstance(event, SignalReceived):
                self._forward_signal(event.number)
        for host in self._hosts:
            host.flush()
            for stream, data in host.read() if is_read and host.is_started else ():
                self._show(host, stream, data)
        self._console.flush()
        if (
            self._on_shown is not None
            and not self._console.waiting
            and all(
                host.has_ended or host.shown_count > before
                for host, before in self._shown_before.items()
            )
        ):
            then, self._on_shown = self._on_shown, None
            then()

    def _show_all(self, then: Callable[[], object], _now: float) -> Iterable[Any]:
        self._on_shown = then
        self._shown_before = {host: host.shown_count for host in self._hosts if not host.has_ended}
        for host in self._shown_before:
            host.signal(SHOW_OUTPUT)
        return ()

    def _show(self, host: Host, stream: int, data: bytes) -> None:
        if self._is_cancelled:
            return
        if stream == ERR and data.startswith(b"clusterrun: "):
            self._console.notice(host.rank, data)
        else:
            self._console.write(stream, data)


def _progress_notice(hosts: Sequence[Host], seconds: float) -> str:
    names = [host.name for host in hosts]
    shown = names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"]
    return (
        f"clusterrun: {counted(len(names), 'host')} not reached by ssh yet:"
        f" {', '.join(shown)} ({seconds:.0f} s)"
    )


def merge_reports(reports: Mapping[str, EndReport], hosts: int) -> EndReport | None:
    """Return one report for hosts that agree on the exit code, None without a report.

    If a rank has failed, its own node's report, which is the longest, is returned. Otherwise each text
    appears once, with the names of its hosts unless all hosts have the same.
    """
    of_ranks = [each for each in reports.values() if each.rank is not None]
    if of_ranks or not reports:
        return max(of_ranks, key=lambda each: len(each.text), default=None)
    names: dict[str, list[str]] = {}
    for name, report in reports.items():
        if report.text:
            names.setdefault(report.text, []).append(name)
    first = next(iter(reports.values()))
    if len(names) == 1 and len(reports) == hosts:
        return first
    text = "\n".join(f"{', '.join(its)}: {text}" for text, its in names.items())
    return replace(first, text=as_text(text))


def job_exit_code(codes: Sequence[int], *, survives_node_loss: bool) -> int:
    """Return the exit code of a job from those of its agents, by rank.

    Agents agree on it, except for lost ones. So the most common code counts, and among equally common
    codes the first. A failure is not outvoted by zeros, unless the job survives the loss of nodes.
    """
    if not codes:
        return ExitCode.NODE_LOST
    considered = codes if survives_node_loss else [code for code in codes if code] or codes
    (code, _), *_ = Counter(considered).most_common(1)
    return code
