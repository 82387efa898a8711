"""The suspend hook: a program on node 0 that exits with 0 when the job is to be suspended."""

import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from clusterrun.errors import MachineError, shell_line
from clusterrun.loop import Loop
from clusterrun.policy.events import Event, SuspensionRequested
from clusterrun.run.supervised_command import SupervisedCommand

SECONDS_FOR_READY = 30.0
"""For ``COMMAND ready``: the ranks have saved and exited, but the nodes are still allocated."""


class SuspendHook:
    """Runs the hook until it ends or the job ends, and ``COMMAND ready`` when all ranks have saved."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        notice: Callable[[str], object],
        loop: Loop[Event],
    ) -> None:
        """Start the hook.

        Args:
            command: the hook and its arguments.
            environ: the environment of the hook.
            notice: prints a line for the user.
            loop: the agent's loop.

        """
        self._command = command
        self._environ = environ
        self._notice = notice
        self._loop = loop
        self._text = shell_line(command)
        self._running: SupervisedCommand | None = SupervisedCommand(command, environ)
        loop.watch(self._running.fileno(), self.events)

    def events(self, now: float) -> Iterable[Event]:
        """Return a ``SuspensionRequested`` if the hook has exited with 0; warn if it ended otherwise."""
        result = None if self._running is None else self._running.result()
        if result is None:
            return
        self.close()
        if result.failure:
            how = f"the suspend hook {result.failure}; it is not started again"
            self._notice(f"warning: {how}: {self._text}")
        else:
            yield SuspensionRequested(f"--suspend-hook {self._text}", now)

    def call_ready(self) -> str:
        """Run ``COMMAND ready`` and wait for it; return what went wrong, "" if nothing did."""
        ready = f"{self._text} ready"
        try:
            command = SupervisedCommand((*self._command, "ready"), self._environ)
        except MachineError as error:
            return f"{ready} can't be run: {error.message}"
        result, deadline = None, time.monotonic() + SECONDS_FOR_READY
        poll = select.poll()
        poll.register(command.fileno(), select.POLLIN)
        while result is None and (left := deadline - time.monotonic()) > 0:
            if poll.poll(1000 * left):
                result = command.result()
        command.close()
        if result is None:
            return f"{ready} gave no answer in {SECONDS_FOR_READY:g} s"
        return f"{ready} {result.failure}" if result.failure else ""

    def close(self) -> None:
        """End the hook and all processes that it has started."""
        if self._running is not None:
            self._loop.forget(self._running.fileno())
            self._running.close()
            self._running = None
