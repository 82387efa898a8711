"""From the start of the agents to the end of the last one."""

import signal
import time
from collections import Counter

import msgspec
from msgspec import Struct

from clusterrun.domain.signal_names import ENDING_SIGNALS
from clusterrun.errors import ExitCode, exit_code_of_signal
from clusterrun.policy.events import SignalReceived
from clusterrun.report.ending import merged, report_text
from clusterrun.ssh.connection import Connection, Phase
from clusterrun.ssh.connections import Connections, Gone, Received
from clusterrun.ssh.faults import lost_words, printed_there
from clusterrun.ssh.frames import Frame, Kind
from clusterrun.ssh.host_job import AgentEnd

SECONDS_TO_AGREE = 5.0
"""On top of heartbeats and grace period: in that time all agents know that the job has ended."""

SECONDS_TO_EXIT = 5.0
"""After an agent's end, how long its ssh may take to exit."""


class Times(Struct, frozen=True):
    """How long parts of an end may take, in seconds."""

    heartbeat: float
    """After this silence an agent knows that another one is lost."""
    grace: float
    """Then it has ended its workers."""


class Running:
    """Passes output and signals on, and sees that no host is left alone."""

    def __init__(self, connections: Connections, times: Times, *, outlives_nodes: bool) -> None:
        """Take hosts that are all ready, and whether the job may go on without one of them."""
        self._connections = connections
        self._times = times
        self._outlives_nodes = outlives_nodes
        self._stop_at: float | None = None
        self._give_up_at: float | None = None
        self._is_signalled = False

    def run(self) -> int:
        """Start the agents; return the exit code of the job when all have ended."""
        for each in self._connections.hosts:
            each.phase = Phase.RUNNING
            each.send(Kind.START)
        while self._connections.open_ones(Phase.RUNNING):
            for happening in self._connections.wait(1.0):
                match happening:
                    case SignalReceived(number):
                        self._pass_on(number)
                    case Received(connection, frame):
                        self._take(connection, frame)
                    case Gone(connection, _, how) if connection.phase is Phase.RUNNING:
                        self._lose(connection, how)
                    case Gone(connection):
                        connection.close()
            self._look()
        self._await_exits()
        return self._report()

    def _pass_on(self, number: int) -> None:
        running = self._connections.open_ones(Phase.RUNNING)
        if number == signal.SIGTSTP:
            self._connections.output.say("clusterrun: a job that ssh has started can't be paused")
            return
        if number == signal.SIGCONT:
            return
        # One agent collects the stacks of all.
        for each in running[:1] if number == signal.SIGQUIT else running:
            each.send(Kind.SIGNAL, str(number).encode())
        if number in ENDING_SIGNALS:
            self._is_signalled = True

    def _take(self, connection: Connection, frame: Frame) -> None:
        match frame.kind:
            case Kind.OUT | Kind.ERR:
                self._connections.output.take(connection.rank, frame.kind, frame.content)
            case Kind.ENDED:
                connection.end = msgspec.json.decode(frame.content, type=AgentEnd)
                connection.phase = Phase.OVER
                self._connections.output.finish(connection.rank)
                if connection.end.code:
                    self._expect_ends()
            case _:
                pass

    def _lose(self, connection: Connection, how: str) -> None:
        why = lost_words(printed_there(connection.error_text))
        what = how or f"has closed the connection{f': {why}' if why else ''}"
        connection.phase = Phase.OVER
        self._connections.output.finish(connection.rank)
        self._connections.output.say(
            f"clusterrun: {connection.host} {what}; what runs there ends by itself"
        )
        connection.close()
        self._expect_ends()

    def _expect_ends(self) -> None:
        """Other agents learn of an end by themselves; those that have not in time are stopped."""
        if self._stop_at is None and not self._outlives_nodes:
            allowed = self._times.heartbeat + self._times.grace + SECONDS_TO_AGREE
            self._stop_at = time.monotonic() + allowed

    def _look(self) -> None:
        now = time.monotonic()
        if self._connections.output.is_gone and not self._is_signalled:
            # As an agent whose standard output is closed.
            self._pass_on(signal.SIGHUP)
        running = self._connections.open_ones(Phase.RUNNING)
        if (
            self._stop_at is not None
            and now > self._stop_at
            and self._give_up_at is None
            and running
        ):
            names = ", ".join(each.host for each in running)
            self._connections.output.say(f"clusterrun: stopping what still runs on {names}")
            self._pass_on(signal.SIGTERM)
            self._give_up_at = now + self._times.grace + SECONDS_TO_AGREE
        if self._give_up_at is not None and now > self._give_up_at:
            for each in running:
                self._lose(each, "does not end")

    def _await_exits(self) -> None:
        """Let the starters exit, so that their hosts have nothing left when this process ends."""
        deadline = time.monotonic() + SECONDS_TO_EXIT
        while self._connections.open_ones(Phase.OVER) and (left := deadline - time.monotonic()) > 0:
            for happening in self._connections.wait(left):
                if isinstance(happening, Gone):
                    happening.connection.close()

    def _report(self) -> int:
        """Print the report once; return the exit code."""
        ends = {it.host: it.end for it in self._connections.hosts if it.end is not None}
        codes = [end.code for end in ends.values()]
        code = job_code(codes, outlives_nodes=self._outlives_nodes)
        reports = {
            host: end.report for host, end in ends.items() if end.code == code and end.report
        }
        if reports:
            self._connections.output.say(report_text(merged(reports)))
        if not ends:
            self._connections.output.say("clusterrun: error: all connections are lost")
        if self._connections.output.is_gone and code in {0, exit_code_of_signal(signal.SIGHUP)}:
            return exit_code_of_signal(signal.SIGPIPE)
        return code


def job_code(codes: list[int], *, outlives_nodes: bool) -> int:
    """Return the exit code of a job by those of its agents, in the order of their ranks.

    Agents of one job agree on it, apart from those that were lost: the commonest one counts, and of
    several the first. No failure is outvoted, unless the job may go on without a node.
    """
    if not codes:
        return ExitCode.NODE_LOST
    considered = codes if outlives_nodes else [code for code in codes if code] or codes
    (code, _), *_ = Counter(considered).most_common(1)
    return code
