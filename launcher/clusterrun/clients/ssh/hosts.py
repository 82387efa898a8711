"""The hosts of one job: from the first connection to the end of the last one.

Each host runs the ordinary command, whose nodes wait for each other: while one is not reached, no worker
starts anywhere, and its fault ends the job before it begins. From then on no host is left alone: nodes
learn by themselves that one of them is lost, and those that do not end in time are stopped.
"""

import gc
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from shutil import which
from typing import Any, NoReturn, Protocol

from msgspec.structs import replace

from clusterrun.bounds import as_text, counted
from clusterrun.clients.ssh.console import HostsConsole, open_console
from clusterrun.clients.ssh.faults import (
    FailedConnection,
    HostFault,
    describe,
    diagnose,
    printable_tail,
)
from clusterrun.clients.ssh.host import ERR, Host
from clusterrun.clients.ssh.remote import (
    calls,
    interpreter_lines,
    interpreters_of,
    ssh_command,
)
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

CONNECTIONS_AT_ONCE = 10
"""On their way, before login; an sshd refuses more than 10 at a time (sshd_config(5), MaxStartups)."""

SECONDS_TO_BE_READY = 30.0
"""For each host, its login shell included."""

SECONDS_TO_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0

SECONDS_TO_AGREE = 5.0
"""On top of heartbeats and grace period: in that time all nodes know that the job has ended."""

SECONDS_BETWEEN_CHECKS = 1.0


class Caller(Protocol):
    """The program that has started this command (``run.caller``)."""

    show: Callable[[Callable[[], object], float], Iterable[Any]]
    """Has what workers have printed shown."""

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once it is gone."""
        ...

    def events(self, now: float) -> Iterable[object]:
        """Return its signals."""
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
        line: what was typed.
        environ: of this process.
        caller: gets the report; None: it is printed.

    Raises:
        UsageError: ssh is not installed here, or a host can't run the job; nothing was started.
        RendezvousError: a host can't be reached; nothing was started.

    """
    called = zip(over_ssh.hosts, tuple(calls(resolved, over_ssh, line, environ)), strict=True)
    ssh = which("ssh", path=environ.get("PATH"))
    if ssh is None:
        raise UsageError(
            f"{over_ssh.launcher.origin} is ssh, and there is no program ssh on PATH",
            "install OpenSSH; on Debian:\n  apt-get install openssh-client",
        )
    interpreters = interpreters_of(resolved.job)
    lines = interpreter_lines(interpreters)
    silence = resolved.job.failures.heartbeat_timeout
    hosts = [
        Host(rank, name, ssh_command(ssh, name, over_ssh.options, silence), lines, call)
        for rank, (name, call) in enumerate(called)
    ]
    gc.enable()
    with ExitStack() as cleanup:
        screen = open_console()
        cleanup.callback(screen.close)
        job = SshJob(resolved, hosts, screen, interpreters[0], caller)
        cleanup.callback(job.close)
        return job.run()


class SshJob:
    """One job: its hosts, this process's screen and its signals."""

    def __init__(
        self,
        resolved: Resolved,
        hosts: Sequence[Host],
        screen: HostsConsole,
        interpreter: str,
        caller: Caller | None,
    ) -> None:
        """Arm the signals; from here on none ends this process.

        Args:
            resolved: the job.
            hosts: in the order of their ranks.
            screen: this process's.
            interpreter: the one that the hosts look for first.
            caller: the program that has started this command; None: a user has.

        """
        job = resolved.job
        self._caller = caller
        if caller is not None:
            caller.show = self._show_all
        self._then: Callable[[], object] | None = None
        """Is called once all hosts have shown what they have printed."""
        self._shown: dict[Host, int] = {}
        """How often they had answered that before."""
        self._hosts = hosts
        self._screen = screen
        self._interpreter = interpreter
        self._outlives_nodes = job.survives_node_loss
        self._silence: float = job.failures.heartbeat_timeout
        self._patience: float = self._silence + job.failures.shutdown_timeout
        self._inbox = Signals()
        self._began_at = time.monotonic()
        self._notice_at = self._began_at + SECONDS_TO_NOTICE
        self._have_begun = False
        """All hosts were ready."""
        self._faults: dict[str, HostFault] = {}
        self._signal: int | None = None
        """The first that ends the job."""
        self._lost: set[Host] = set()
        self._stop_at = self._give_up_at = NEVER

    def close(self) -> None:
        for host in self._hosts:
            host.end()

    def run(self) -> int:
        """Run the job to the end of its last host, and report once; return its exit code.

        Raises:
            UsageError: hosts were reached, and can't run the job.
            RendezvousError: a host was not reached.

        """
        while not all(host.is_over for host in self._hosts):
            self._open_some()
            self._wait(SECONDS_BETWEEN_CHECKS)
            self._see_to_the_start()
            if self._have_begun or self._is_called_off:
                self._see_to_the_end()
        if self._signal is not None and not self._have_begun:
            self._screen.say(
                f"clusterrun: {signal_name(self._signal)} before any worker was started"
            )
            return exit_code_of_signal(self._signal)
        if self._faults:
            self._fail()
        return self._report()

    # Until all hosts are ready.

    @property
    def _is_called_off(self) -> bool:
        """Whether no worker is to start any more, on any host: nodes wait for those that have a fault."""
        return bool(self._faults) or (self._signal is not None and not self._have_begun)

    def _open_some(self) -> None:
        waiting = [host for host in self._hosts if not (host.is_started or host.is_over)]
        opening = [host for host in self._hosts if host.is_started and not _has_been_reached(host)]
        for host in waiting[: max(0, CONNECTIONS_AT_ONCE - len(opening))]:
            if self._signal is None:
                host.open()
            else:
                host.leave_out()

    def _see_to_the_start(self) -> None:
        now = time.monotonic()
        for host in self._hosts:
            if host.name not in self._faults and (fault := self._fault_of(host, now)):
                self._faults[host.name] = fault
                host.end()
        coming = [host for host in self._hosts if not _has_been_reached(host)]
        self._have_begun |= not coming
        if self._is_called_off and not (self._faults and coming):
            for host in self._hosts:
                host.close_lifeline()
            for host in coming:
                host.end()
            self._give_up_at = min(self._give_up_at, now + self._patience + SECONDS_TO_AGREE)
        elif coming and now > self._notice_at:
            self._notice_at = now + SECONDS_BETWEEN_NOTICES
            self._screen.say(_waiting_line(coming, now - self._began_at))

    def _fault_of(self, host: Host, now: float) -> HostFault | None:
        """Return why a host can't take part; None: it can, or is not known to be unable."""
        if host.report is not None and host.report.reason == UsageError.__name__:
            return HostFault(host.report.message, host.report.hint, is_mistake=True)
        is_late = host.is_started and now - host.began_at > SECONDS_TO_BE_READY
        if host.is_ready or not (host.is_over or is_late) or not host.is_started:
            return None
        return diagnose(
            FailedConnection(
                host=host.name,
                python=self._interpreter,
                reached=host.reached,
                exit_code=host.exit_code,
                waited=SECONDS_TO_BE_READY,
                noise=printable_tail(host.noise),
                errors=printable_tail(host.errors),
            )
        )

    def _fail(self) -> NoReturn:
        in_order = {
            host.name: self._faults[host.name] for host in self._hosts if host.name in self._faults
        }
        is_mistake = all(fault.is_mistake for fault in in_order.values())
        error: type[LauncherError] = UsageError if is_mistake else RendezvousError
        raise error(*describe(in_order, len(self._hosts)))

    # From then on.

    def _see_to_the_end(self) -> None:
        now = time.monotonic()
        running = [host for host in self._hosts if not host.is_over]
        for host in self._hosts:
            if host.is_over and host.report is None and host not in self._lost:
                self._lose(host, "has closed the connection")
        if not self._outlives_nodes:
            # The other nodes learn of it by themselves.
            failed = any(each.report is not None and each.report.code for each in self._hosts)
            ends = self._patience + SECONDS_TO_AGREE if failed else NEVER
            within = min(ends, self._silence if self._lost else NEVER)
            self._stop_at = min(self._stop_at, now + within)
        if self._screen.is_gone and self._signal is None:
            # As a command whose standard output is closed.
            self._pass_on(signal.SIGHUP)
        if now > self._give_up_at:
            for host in running:
                self._lose(host, "does not end")
                host.end()
        elif now > self._stop_at and self._give_up_at == NEVER:
            names = ", ".join(host.name for host in running)
            self._screen.say(f"clusterrun: stopping what still runs on {names}")
            for host in running:
                host.close_lifeline()
            self._give_up_at = now + self._patience + SECONDS_TO_AGREE

    def _lose(self, host: Host, how: str) -> None:
        self._lost.add(host)
        if not self._is_called_off:
            self._screen.say(f"clusterrun: {host.name} {how}; what runs there ends by itself")

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._screen.say("clusterrun: a job that ssh has started can't be paused")
            return
        if number == signal.SIGCONT:
            return
        if number in ENDING_SIGNALS:
            self._signal = self._signal or number
        running = [host for host in self._hosts if not host.is_over]
        # One node collects the stacks of all.
        for host in running[:1] if number == signal.SIGQUIT else running:
            host.signal(number)

    def _report(self) -> int:
        """Print the report once; return the exit code."""
        reports = {host.name: host.report for host in self._hosts if host.report is not None}
        if not reports:
            self._screen.say("clusterrun: error: all connections are lost")
        code = job_exit_code(
            [each.code for each in reports.values()], survives_node_loss=self._outlives_nodes
        )
        agreed = {name: each for name, each in reports.items() if each.code == code}
        report = merge_reports(agreed, len(self._hosts))
        if self._caller is None:
            self._screen.say(report.text if report is not None else "")
        elif report is not None:
            self._caller.ended(report)
        if self._screen.is_gone and code in {0, exit_code_of_signal(signal.SIGHUP)}:
            return exit_code_of_signal(signal.SIGPIPE)
        return code

    def _wait(self, seconds: float) -> None:
        """Wait for at most so long, and take what happens."""
        is_read = not self._screen.is_congested
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            if self._caller is not None and self._caller.fileno() >= 0:
                selector.register(self._caller, selectors.EVENT_READ)
            for output in self._screen.waiting:
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
                self._pass_on(event.number)
        for host in self._hosts:
            host.flush()
            for stream, data in host.read() if is_read and host.is_started else ():
                self._show(host, stream, data)
        self._screen.flush()
        if (
            self._then is not None
            and not self._screen.waiting
            and all(host.is_over or host.shown > before for host, before in self._shown.items())
        ):
            then, self._then = self._then, None
            then()

    def _show_all(self, then: Callable[[], object], _now: float) -> Iterable[Any]:
        self._then = then
        self._shown = {host: host.shown for host in self._hosts if not host.is_over}
        for host in self._shown:
            host.signal(SHOW_OUTPUT)
        return ()

    def _show(self, host: Host, stream: int, data: bytes) -> None:
        if self._is_called_off:
            return
        if stream == ERR and data.startswith(b"clusterrun: "):
            self._screen.notice(host.rank, data)
        else:
            self._screen.write(stream, data)


def _has_been_reached(host: Host) -> bool:
    return host.is_ready or host.is_over


def _waiting_line(hosts: Sequence[Host], seconds: float) -> str:
    names = [host.name for host in hosts]
    shown = names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"]
    return (
        f"clusterrun: {counted(len(names), 'host')} not reached by ssh yet:"
        f" {', '.join(shown)} ({seconds:.0f} s)"
    )


def merge_reports(reports: Mapping[str, EndReport], hosts: int) -> EndReport | None:
    """Return one report of hosts that agree on the exit code; None: there is none.

    If a rank has failed, its own node knows most of it. Other texts are told once, with the names of
    their hosts if not all say the same.
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
    """Return the exit code of a job by those of its agents, in the order of their ranks.

    Agents of one job agree on it, apart from those that were lost: the commonest one counts, and of
    several the first. No failure is outvoted, unless the job may go on without a node.
    """
    if not codes:
        return ExitCode.NODE_LOST
    considered = codes if survives_node_loss else [code for code in codes if code] or codes
    (code, _), *_ = Counter(considered).most_common(1)
    return code
