"""The hosts of one job: from the first connection to the end of the last one.

All hosts are ready, or nothing is started: one fault ends the job before it begins. From then on no
host is left alone: the agents learn by themselves that one of them is lost, and those that do not end
in time are stopped.
"""

import gc
import selectors
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from shutil import which
from typing import NoReturn

from msgspec import Struct

from clusterrun.bounds import counted
from clusterrun.clients.ssh.connection import SshConnection
from clusterrun.clients.ssh.faults import (
    HostFault,
    LastWords,
    describe,
    fault_of,
    lost_words,
    printed_there,
)
from clusterrun.clients.ssh.remote import (
    calls,
    interpreter_lines,
    interpreters_of,
    ssh_command,
)
from clusterrun.clients.ssh.screen import HostsScreen, own_screen
from clusterrun.errors import (
    ExitCode,
    LauncherError,
    RendezvousError,
    UsageError,
    exit_code_of_signal,
)
from clusterrun.job.over_ssh import OverSsh
from clusterrun.job.resolve import Resolved
from clusterrun.job.sources import CommandLine
from clusterrun.network.caller import (
    Beat,
    Ended,
    FromAgent,
    Notice,
    Output,
    Ready,
    Refused,
    Signal,
    Start,
)
from clusterrun.network.handshake import BadFrame
from clusterrun.policy.outcome import Report
from clusterrun.report.ending import merged, report_text
from clusterrun.signals import ENDING_SIGNALS, ChildEnded, SignalReceived, Signals, signal_name

CONNECTIONS_AT_ONCE = 10
"""On their way, before login; an sshd refuses more than 10 at a time (sshd_config(5), MaxStartups)."""

SECONDS_TO_BE_READY = 30.0
"""For each host, its login shell included."""

SECONDS_TO_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0

SECONDS_TO_AGREE = 5.0
"""On top of heartbeats and grace period: in that time all agents know that the job has ended."""

MOST_OF_SSH = 2
"""Lines that ssh prints as its connection breaks."""

SECONDS_TO_EXIT = 5.0
"""After an agent's end, how long its ssh may take to exit."""


# What a host does.


class Waits(Struct, frozen=True):
    """It is not called yet: only some are at a time."""


class Opening(Struct, frozen=True):
    """ssh runs; the agent has not answered yet."""


class IsReady(Struct, frozen=True):
    """The job can start there."""


class IsRunning(Struct, frozen=True):
    """Its agent runs the job."""


class IsOver(Struct, frozen=True):
    """Its part of the job has ended, or never begins."""

    code: int | None = None
    """The exit code of its agent; None: the host is lost, or was not ready."""
    report: Report | None = None


State = Waits | Opening | IsReady | IsRunning | IsOver


class Gone(Struct, frozen=True):
    """A connection has ended, or can't go on."""

    exit_code: int | None
    """ssh's; None: it still runs."""
    how: str = ""
    """"has been silent for 15 s"; "": ssh has ended."""


class Host:
    """A host, in the place of its node rank."""

    def __init__(self, rank: int, name: str, connect: Callable[[], SshConnection]) -> None:
        self.rank = rank
        self.name = name
        self.state: State = Waits()
        self._connect = connect
        self._connection: SshConnection | None = None

    @property
    def connection(self) -> SshConnection:
        if self._connection is None:
            raise AssertionError(f"{self.name} has not been called")
        return self._connection

    @property
    def is_connected(self) -> bool:
        """Whether ssh runs, as far as is known."""
        return self._connection is not None

    def open(self) -> None:
        self._connection = self._connect()
        self.state = Opening()

    def close(self) -> None:
        """End ssh; what its host still runs ends with it."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def launch_over_ssh(
    resolved: Resolved, over_ssh: OverSsh, line: CommandLine, environ: Mapping[str, str]
) -> int:
    """Run the job on all hosts; return its exit code.

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
    hosts = [
        Host(
            rank,
            name,
            partial(SshConnection, ssh_command(ssh, name, over_ssh.options), lines, call),
        )
        for rank, (name, call) in enumerate(called)
    ]
    gc.enable()
    with ExitStack() as cleanup:
        screen = own_screen()
        cleanup.callback(screen.close)
        job = JobOverSsh(resolved, hosts, screen)
        cleanup.callback(job.close)
        if (number := job.open_all(interpreters[0])) is not None:
            screen.say(f"clusterrun: {signal_name(number)} before any worker was started")
            return exit_code_of_signal(number)
        return job.run()


class JobOverSsh:
    """One job: its hosts, this process's screen and its signals."""

    def __init__(self, resolved: Resolved, hosts: Sequence[Host], screen: HostsScreen) -> None:
        """Arm the signals; from here on none ends this process."""
        job = resolved.job
        self._hosts = hosts
        self._screen = screen
        self._outlives_nodes = job.outlives_nodes
        self._silence: float = job.failing.heartbeat_timeout
        self._grace: float = job.failing.shutdown_timeout
        self._pause = min(1.0, self._silence / 4)
        self._inbox = Signals()
        self._beat_at = self._forgiven_until = 0.0
        self._faults: dict[str, HostFault] = {}
        self._is_signalled = False
        self._stop_at: float | None = None
        self._give_up_at: float | None = None

    def close(self) -> None:
        for host in self._hosts:
            host.close()

    # Until all hosts are ready.

    def open_all(self, interpreter: str) -> int | None:
        """Return None when all hosts are ready, or the signal that ended the wait.

        Args:
            interpreter: the one that the hosts look for first.

        Raises:
            UsageError: hosts were reached, and can't run the job.
            RendezvousError: a host was not reached.

        """
        began_at = time.monotonic()
        notice_at = began_at + SECONDS_TO_NOTICE
        while coming := self._which(Waits, Opening):
            opening = self._which(Opening)
            for host in self._which(Waits)[: max(0, CONNECTIONS_AT_ONCE - len(opening))]:
                host.open()
            for happening in self._wait(1.0):
                match happening:
                    case SignalReceived(number) if number in ENDING_SIGNALS:
                        return number
                    case (host, Ready()):
                        host.state = IsReady()
                        # Banners and what the login shell has printed say nothing of a later loss.
                        host.connection.errors.clear()
                    case (host, Refused(_, message, hint)):
                        self._leave_out(host, HostFault(message, hint, is_mistake=True))
                    case (host, Gone(_, how)) if isinstance(host.state, IsReady):
                        self._leave_out(host, _lost_before_start(host, how))
                    case (host, Gone(exit_code)):
                        self._leave_out(host, _not_ready(host, interpreter, exit_code))
                    case _:
                        pass
            now = time.monotonic()
            for host in self._which(Opening):
                if now - host.connection.began_at > SECONDS_TO_BE_READY:
                    self._leave_out(host, _not_ready(host, interpreter, None))
            if now > notice_at and (coming := self._which(Waits, Opening)):
                notice_at = now + SECONDS_BETWEEN_NOTICES
                self._screen.say(_waiting_line(coming, now - began_at))
        if self._faults:
            self._fail()
        return None

    def _leave_out(self, host: Host, fault: HostFault) -> None:
        host.state = IsOver()
        host.close()
        self._faults[host.name] = fault

    def _fail(self) -> NoReturn:
        in_order = {
            host.name: self._faults[host.name] for host in self._hosts if host.name in self._faults
        }
        is_mistake = all(fault.is_mistake for fault in in_order.values())
        error: type[LauncherError] = UsageError if is_mistake else RendezvousError
        raise error(*describe(in_order, len(self._hosts)))

    # From the start of the agents to the end of the last one.

    def run(self) -> int:
        """Start the job; return its exit code when all agents have ended, and report once."""
        for host in self._hosts:
            host.state = IsRunning()
            host.connection.send(Start())
        while self._which(IsRunning):
            for happening in self._wait(1.0):
                match happening:
                    case SignalReceived(number):
                        self._pass_on(number)
                    case (host, Output(stream, data)):
                        self._screen.write(stream, data)
                    case (host, Notice(text)):
                        self._screen.notice(host.rank, text)
                    case (host, Refused() as refused):
                        self._screen.notice(host.rank, refused.error.explain())
                        self._ends(host, IsOver(refused.error.exit_code))
                    case (host, Ended(code, report, unprinted)):
                        self._screen.notice(host.rank, unprinted.rstrip("\n"))
                        self._ends(host, IsOver(code, report))
                    case (host, Gone(_, how)) if isinstance(host.state, IsRunning):
                        self._lose(host, how)
                    case (host, Gone()):
                        host.close()
                    case _:
                        pass
            self._see_to_the_end()
        self._await_exits()
        return self._report()

    def _pass_on(self, number: int) -> None:
        running = self._which(IsRunning)
        if number == signal.SIGTSTP:
            self._screen.say("clusterrun: a job that ssh has started can't be paused")
            return
        if number == signal.SIGCONT:
            return
        # One agent collects the stacks of all.
        for host in running[:1] if number == signal.SIGQUIT else running:
            host.connection.send(Signal(number))
        if number in ENDING_SIGNALS:
            self._is_signalled = True

    def _ends(self, host: Host, over: IsOver) -> None:
        host.state = over
        if over.code:
            self._expect_ends()

    def _lose(self, host: Host, how: str) -> None:
        printed = printed_there(host.connection.errors).strip()
        why = lost_words(printed)
        what = how or f"has closed the connection{f': {why}' if why else ''}"
        # ssh itself says one or two things; more is an agent's that was not ready for its own error.
        lines = printed.splitlines()
        rest = [f"  {line}" for line in lines] if len(lines) > MOST_OF_SSH else []
        said = f"clusterrun: {host.name} {what}; what runs there ends by itself"
        self._screen.say("\n".join([said, *rest]))
        host.state = IsOver()
        host.close()
        self._expect_ends()

    def _expect_ends(self) -> None:
        """Other agents learn of an end by themselves; those that have not in time are stopped."""
        if self._stop_at is None and not self._outlives_nodes:
            self._stop_at = time.monotonic() + self._silence + self._grace + SECONDS_TO_AGREE

    def _see_to_the_end(self) -> None:
        now = time.monotonic()
        if self._screen.is_gone and not self._is_signalled:
            # As an agent whose standard output is closed.
            self._pass_on(signal.SIGHUP)
        running = self._which(IsRunning)
        if self._give_up_at is not None:
            if now > self._give_up_at:
                for host in running:
                    self._lose(host, "does not end")
        elif self._stop_at is not None and now > self._stop_at and running:
            names = ", ".join(host.name for host in running)
            self._screen.say(f"clusterrun: stopping what still runs on {names}")
            self._pass_on(signal.SIGTERM)
            self._give_up_at = now + self._grace + SECONDS_TO_AGREE

    def _await_exits(self) -> None:
        """Let the agents exit, so that their hosts have nothing left when this process ends."""
        deadline = time.monotonic() + SECONDS_TO_EXIT
        while self._connected() and (left := deadline - time.monotonic()) > 0:
            for happening in self._wait(left):
                match happening:
                    case (host, Gone()):
                        host.close()
                    case _:
                        pass

    def _report(self) -> int:
        """Print the report once; return the exit code."""
        ends = {host.name: host.state for host in self._hosts if isinstance(host.state, IsOver)}
        codes = [end.code for end in ends.values() if end.code is not None]
        if not codes:
            self._screen.say("clusterrun: error: all connections are lost")
        code = job_code(codes, outlives_nodes=self._outlives_nodes)
        reports = {
            name: end.report for name, end in ends.items() if end.code == code and end.report
        }
        if reports:
            self._screen.say(report_text(merged(reports)))
        if self._screen.is_gone and code in {0, exit_code_of_signal(signal.SIGHUP)}:
            return exit_code_of_signal(signal.SIGPIPE)
        return code

    # What happens.

    def _which(self, *states: type[State]) -> list[Host]:
        return [host for host in self._hosts if isinstance(host.state, states)]

    def _connected(self) -> list[Host]:
        return [host for host in self._hosts if host.is_connected]

    def _wait(
        self, seconds: float
    ) -> Iterator[SignalReceived | tuple[Host, FromAgent] | tuple[Host, Gone]]:
        """Wait for at most so long; yield what happens."""
        is_read = not self._screen.is_congested
        self._select(min(seconds, self._pause), is_read=is_read)
        signals = list(self._inbox.events(time.monotonic()))
        yield from (each for each in signals if isinstance(each, SignalReceived))
        child_ended = any(isinstance(each, ChildEnded) for each in signals)
        for host in self._connected():
            host.connection.flush()
            # First the exit, then the pipes: what was printed before it is not lost.
            exit_code = host.connection.exit_code() if child_ended else None
            if is_read or exit_code is not None:
                yield from self._arrived(host)
            if exit_code is not None and host.is_connected:
                yield host, Gone(exit_code)
        self._screen.flush()
        yield from self._silent(is_read=is_read)
        self._beat()

    def _select(self, seconds: float, *, is_read: bool) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._inbox, selectors.EVENT_READ)
            for output in self._screen.waiting:
                selector.register(output, selectors.EVENT_WRITE)
            for host in self._connected():
                for descriptor in host.connection.writing:
                    selector.register(descriptor, selectors.EVENT_WRITE)
                for descriptor in host.connection.reading if is_read else ():
                    selector.register(descriptor, selectors.EVENT_READ)
            selector.select(max(0.0, seconds))

    def _arrived(self, host: Host) -> Iterator[tuple[Host, FromAgent] | tuple[Host, Gone]]:
        try:
            messages = host.connection.receive()
        except BadFrame:
            yield host, Gone(None, "prints something else into the connection")
            return
        for message in messages:
            if not isinstance(message, Beat):
                yield host, message

    def _silent(self, *, is_read: bool) -> Iterator[tuple[Host, Gone]]:
        now = time.monotonic()
        if not is_read:
            # What is not read because our own reader is slow says nothing of its sender.
            self._forgiven_until = now
        for host in self._which(IsReady, IsRunning):
            if now - max(host.connection.heard_at, self._forgiven_until) > self._silence:
                yield host, Gone(None, f"has been silent for {self._silence:g} s")

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beat_at < self._pause:
            return
        self._beat_at = now
        for host in self._connected():
            if host.connection.is_idle:
                host.connection.send(Beat())


def _waiting_line(hosts: Sequence[Host], seconds: float) -> str:
    names = [host.name for host in hosts]
    shown = names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"]
    return (
        f"clusterrun: {counted(len(names), 'host')} not reached by ssh yet:"
        f" {', '.join(shown)} ({seconds:.0f} s)"
    )


def _lost_before_start(host: Host, how: str) -> HostFault:
    words = lost_words(printed_there(host.connection.errors))
    return HostFault(f"it was ready, and then {how or 'has closed the connection'}", words)


def _not_ready(host: Host, interpreter: str, exit_code: int | None) -> HostFault:
    connection = host.connection
    return fault_of(
        LastWords(
            host=host.name,
            python=interpreter,
            reached=connection.greeting.reached,
            exit_code=exit_code,
            waited=SECONDS_TO_BE_READY,
            noise=printed_there(connection.greeting.noise),
            errors=printed_there(connection.errors),
        )
    )


def job_code(codes: Sequence[int], *, outlives_nodes: bool) -> int:
    """Return the exit code of a job by those of its agents, in the order of their ranks.

    Agents of one job agree on it, apart from those that were lost: the commonest one counts, and of
    several the first. No failure is outvoted, unless the job may go on without a node.
    """
    if not codes:
        return ExitCode.NODE_LOST
    considered = codes if outlives_nodes else [code for code in codes if code] or codes
    (code, _), *_ = Counter(considered).most_common(1)
    return code
