"""Until all hosts are ready: nothing has been started yet, and one fault ends it."""

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import msgspec

from clusterrun.domain.counts import counted
from clusterrun.domain.signal_names import ENDING_SIGNALS
from clusterrun.errors import LauncherError, RendezvousError, UsageError
from clusterrun.policy.events import SignalReceived
from clusterrun.ssh.connection import Connection, Phase
from clusterrun.ssh.connections import Connections, Gone, Received
from clusterrun.ssh.faults import (
    Fault,
    LastWords,
    describe,
    fault_of,
    lost_words,
    printed_there,
)
from clusterrun.ssh.frames import Frame, Kind
from clusterrun.ssh.host_job import Refusal

CONNECTIONS_AT_ONCE = 10
"""On their way, before login; an sshd refuses more than 10 at a time (sshd_config(5), MaxStartups)."""

SECONDS_TO_BE_READY = 30.0
"""For each host, its login shell included."""

SECONDS_TO_NOTICE = 5.0
SECONDS_BETWEEN_NOTICES = 30.0


class Opening:
    """Opens the connections, some at a time, and waits until all hosts are ready."""

    def __init__(
        self,
        connections: Connections,
        command: Callable[[str], Sequence[str]],
        python: str,
    ) -> None:
        """Take what reaches a host, by its name.

        Args:
            connections: the hosts; none is open.
            command: returns ssh's command line for a host.
            python: the interpreter that the hosts look for.

        """
        self._connections = connections
        self._command = command
        self._python = python
        self._left = list(connections.hosts)
        self._faults: dict[str, Fault] = {}
        self._began_at = time.monotonic()
        self._notice_at = self._began_at + SECONDS_TO_NOTICE

    def run(self) -> int | None:
        """Return None when all hosts are ready, or the signal that ended the wait.

        Raises:
            UsageError: hosts were reached, and can't run the job.
            RendezvousError: a host was not reached.

        """
        while self._left or self._opening:
            self._open_some()
            for happening in self._connections.wait(1.0):
                match happening:
                    case SignalReceived(number) if number in ENDING_SIGNALS:
                        return number
                    case Received(connection, frame):
                        self._take(connection, frame)
                    case Gone(connection, _, how) if connection.phase is Phase.READY:
                        self._lose(connection, how)
                    case Gone(connection, exit_code):
                        self._give_up(connection, exit_code)
                    case _:
                        pass
            self._expect_all()
        if self._faults:
            self._fail()
        return None

    @property
    def _opening(self) -> list[Connection]:
        return self._connections.open_ones(Phase.OPENING)

    def _open_some(self) -> None:
        for each in self._left[: max(0, CONNECTIONS_AT_ONCE - len(self._opening))]:
            self._left.remove(each)
            each.open(self._command(each.host))

    def _take(self, connection: Connection, frame: Frame) -> None:
        if frame.kind is Kind.READY:
            connection.phase = Phase.READY
            # Banners and what the login shell has printed say nothing of a later loss.
            connection.error_text.clear()
        elif frame.kind is Kind.REFUSED:
            refusal = msgspec.json.decode(frame.content, type=Refusal)
            fault = Fault(refusal.message, refusal.hint, is_mistake=True)
            self._end(connection, fault)

    def _give_up(self, connection: Connection, exit_code: int | None) -> None:
        last = LastWords(
            host=connection.host,
            python=self._python,
            reached=connection.greeting.reached,
            exit_code=exit_code,
            waited=SECONDS_TO_BE_READY,
            noise=printed_there(connection.greeting.noise),
            errors=printed_there(connection.error_text),
        )
        self._end(connection, fault_of(last))

    def _lose(self, connection: Connection, how: str) -> None:
        what = how or "has closed the connection"
        words = lost_words(printed_there(connection.error_text))
        self._end(connection, Fault(f"it was ready, and then {what}", words))

    def _end(self, connection: Connection, fault: Fault) -> None:
        connection.phase = Phase.OVER
        connection.close()
        self._faults[connection.host] = fault

    def _expect_all(self) -> None:
        now = time.monotonic()
        for each in self._opening:
            if now - each.opened_at > SECONDS_TO_BE_READY:
                self._give_up(each, None)
        if now > self._notice_at and (waiting := [*self._opening, *self._left]):
            self._notice_at = now + SECONDS_BETWEEN_NOTICES
            names = [each.host for each in waiting]
            shown = names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"]
            self._connections.output.say(
                f"clusterrun: {counted(len(names), 'host')} not reached by ssh yet:"
                f" {', '.join(shown)} ({now - self._began_at:.0f} s)"
            )

    def _fail(self) -> NoReturn:
        hosts = self._connections.hosts
        in_order = {it.host: self._faults[it.host] for it in hosts if it.host in self._faults}
        is_mistake = all(fault.is_mistake for fault in in_order.values())
        error: type[LauncherError] = UsageError if is_mistake else RendezvousError
        raise error(*describe(in_order, len(hosts)))
