"""The program that has started this command: its signals, its end, and how it learns of the job's end.

A caller sets CLUSTERRUN_CALLER=FD:MARK. Standard input is its lifeline then: each byte is the number of
a signal, and the end of the file means SIGTERM. 0 asks to show what workers have printed by now; a line
on descriptor FD answers. The end of the job is a line there, too (``clusterrun.policy.end_report``), in
place of the report that is printed.
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
from clusterrun.signals import FORWARDED_SIGNALS, OUR_OWN, SignalReceived

Show = Callable[[Callable[[], object], float], Iterable[Event]]
"""Takes what is called then, and the time; returns what happens at once."""

MAX_SIGNALS = 64
"""Bytes that are read at once."""


class CallingProgram:
    """Who has started this command."""

    def __init__(self, descriptor: int, mark: str) -> None:
        """Take over descriptor 0; workers get /dev/null."""
        self.merges_output = descriptor == 2
        """What this command prints is shown with what others print, on one screen."""
        self._lifeline = os.dup(0)
        self._reports = self._lifeline if descriptor == 0 else descriptor
        self._mark = mark
        self._is_gone = False
        self._stop_watching: Callable[[], object] = lambda: None
        self.show: Show = lambda _then, _now: ()
        """Has what workers have printed shown; to be set once there are some."""
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.set_blocking(self._lifeline, False)

    @classmethod
    def of(cls, value: str) -> Self:
        """Return the one that has set the variable to this.

        Raises:
            UsageError: it has no descriptor and mark.

        """
        descriptor, _, mark = value.partition(":")
        if descriptor not in {"0", "2"} or not mark.isalnum():
            raise UsageError(
                f"{CALLER_VARIABLE} is {value!r}: it is set by programs that start clusterrun",
                f"leave it out: unset {CALLER_VARIABLE}",
            )
        return cls(int(descriptor), mark)

    def fileno(self) -> int:
        """Return the descriptor to wait for; -1 once its end was read."""
        return -1 if self._is_gone else self._lifeline

    def run_in(self, loop: Loop[Event]) -> None:
        """Have its signals as events of the agent's loop."""
        self._stop_watching = lambda: loop.forget(self._lifeline)
        loop.watch(self._lifeline, self.events)

    def events(self, now: float) -> Iterable[Event]:
        """Return the signals that have come, SIGTERM once the caller is gone."""
        try:
            numbers = os.read(self._lifeline, MAX_SIGNALS)
        except BlockingIOError:
            return
        except OSError:
            numbers = b""
        if not numbers:
            # The end of a file stays readable: the loop would never wait again.
            self._is_gone = True
            self._stop_watching()
            yield SignalReceived(signal.SIGTERM, now)
        for number in numbers:
            if number == SHOW_OUTPUT:
                yield from self.show(lambda: self._write(output_shown_line(self._mark)), now)
            if number in {*OUR_OWN, *FORWARDED_SIGNALS}:
                yield SignalReceived(number, now)

    def refused(self, error: LauncherError) -> None:
        """Report that there is no job, or that it could not go on."""
        self.ended(EndReport.of_error(error))

    def ended(self, report: EndReport) -> None:
        """Report the end; a caller that is gone needs none."""
        self._write(report.line(self._mark))

    def _write(self, line: bytes) -> None:
        # Standard error is also others'.
        waits = self._reports == self._lifeline
        with suppress(OSError):
            if waits:
                os.set_blocking(self._lifeline, True)
            while line:
                line = line[os.write(self._reports, line) :]
            if waits:
                os.set_blocking(self._lifeline, False)
