"""The protocol between clusterrun and a program that has started it.

The program sets CLUSTERRUN_CALLER=FD:MARK. Standard input then is its lifeline: each byte is the number
of a signal, and the end of the file means SIGTERM. The byte 0 requests the output of the workers so far;
a line on descriptor FD says that it was shown. The result of the job is also a line there
(``clusterrun.policy.end_report``) and replaces the printed report.
"""

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Self

from clusterrun.errors import LauncherError, UsageError
from clusterrun.job.sources import CALLER_VARIABLE
from clusterrun.loop import Loop
from clusterrun.policy.end_report import SHOW_OUTPUT, EndReport, output_shown_line
from clusterrun.policy.events import Event
from clusterrun.signals import FORWARDED_SIGNALS, HANDLED_SIGNALS, SignalReceived

Show = Callable[[Callable[[], object], float], Iterable[Event]]
"""Takes the function to call when output was shown, and the time; returns events."""

MAX_SIGNALS = 64
"""Bytes to read at once."""


class CallingProgram:
    """The program that has started this command."""

    def __init__(self, descriptor: int, mark: str) -> None:
        """Take over standard input, and replace it by /dev/null for the workers."""
        self.merges_output = descriptor == 2
        """The caller shows this command's output on one screen with that of others."""
        self._lifeline = os.dup(0)
        self._reports = self._lifeline if descriptor == 0 else descriptor
        self._mark = mark
        self._is_gone = False
        self._stop_watching: Callable[[], object] = lambda: None
        self.show: Show = lambda _then, _now: ()
        """Has the output of the workers shown; to be set once there are workers."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.set_blocking(self._lifeline, False)

    @classmethod
    def of(cls, value: str) -> Self:
        """Return the caller that has set CLUSTERRUN_CALLER to ``value``.

        Raises:
            UsageError: ``value`` is not FD:MARK.

        """
        descriptor, _, mark = value.partition(":")
        if descriptor not in {"0", "2"} or not mark.isalnum():
            raise UsageError(
                f"{CALLER_VARIABLE} is {value!r}: it is set by programs that start clusterrun",
                f"run unset {CALLER_VARIABLE}",
            )
        return cls(int(descriptor), mark)

    def fileno(self) -> int:
        """Return the lifeline's descriptor; -1 once its end was read."""
        return -1 if self._is_gone else self._lifeline

    def run_in(self, loop: Loop[Event]) -> None:
        """Have the caller's signals as events of the agent's loop."""
        self._stop_watching = lambda: loop.forget(self._lifeline)
        loop.watch(self._lifeline, self.events)

    def events(self, now: float) -> Iterable[Event]:
        """Return the signals that have come, and SIGTERM once the caller is gone."""
        try:
            numbers = os.read(self._lifeline, MAX_SIGNALS)
        except BlockingIOError:
            return
        except OSError:
            numbers = b""
        if not numbers:
            # A descriptor at its end stays readable, and the loop would never wait again.
            self._is_gone = True
            self._stop_watching()
            yield SignalReceived(signal.SIGTERM, now)
        for number in numbers:
            if number == SHOW_OUTPUT:
                yield from self.show(lambda: self._write(output_shown_line(self._mark)), now)
            if number in {*HANDLED_SIGNALS, *FORWARDED_SIGNALS}:
                yield SignalReceived(number, now)

    def refused(self, error: LauncherError) -> None:
        """Report that the job could not be started, or that the launcher failed."""
        self.ended(EndReport.of_error(error))

    def ended(self, report: EndReport) -> None:
        """Report the end; nothing happens if the caller is gone."""
        self._write(report.line(self._mark))

    def _write(self, line: bytes) -> None:
        # The mode of standard error is not changed, because other programs share it.
        is_lifeline = self._reports == self._lifeline
        with suppress(OSError):
            if is_lifeline:
                os.set_blocking(self._lifeline, True)
            while line:
                line = line[os.write(self._reports, line) :]
            if is_lifeline:
                os.set_blocking(self._lifeline, False)
