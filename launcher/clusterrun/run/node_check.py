"""``--check COMMAND``: a shell command of the user that decides whether this node may be in the job."""

from collections.abc import Callable, Iterable

from clusterrun.bounds import as_line
from clusterrun.job.declarations import Setting
from clusterrun.loop import Loop
from clusterrun.policy.events import Event, NodeChecked
from clusterrun.policy.tracebacks import plain_lines
from clusterrun.run.node import LocalNode
from clusterrun.run.supervised_command import CommandStatus, SupervisedCommand

VARIABLE = "CLUSTERRUN_CHECK"
"""Removed from the command's environment, because the command may be a clusterrun itself."""

LAST_LINES = 20
"""Of the output, printed if the command fails."""


class NodeCheck:
    """Runs the command before this node joins, and after one of its workers has failed first."""

    def __init__(self, node: LocalNode, say: Callable[[str], object], loop: Loop[Event]) -> None:
        """``say`` prints text for the user."""
        self._command = node.job.join.check
        self._environ = {name: each for name, each in node.environment.items() if name != VARIABLE}
        self._timeout = Setting(node.job.join.rdzv_timeout, "--rdzv-timeout")
        self._say = say
        self._loop = loop
        self._running: SupervisedCommand | None = None

    def start(self) -> None:
        """Start the command unless it is running; a ``NodeChecked`` follows.

        Raises:
            MachineError: a limit of processes is reached.

        """
        if self._running is None:
            shell = ("/bin/sh", "-c", self._command)
            self._running = SupervisedCommand(
                shell, self._environ, keeps_output=True, timeout=self._timeout
            )
            self._loop.watch(self._running.fileno(), self.events)

    def close(self) -> None:
        """End the command if it runs, and all processes that it has started."""
        if self._running is not None:
            self._loop.forget(self._running.fileno())
            self._running.close()
            self._running = None

    def events(self, now: float) -> Iterable[Event]:
        """Return a ``NodeChecked`` once the command has ended; print its last lines if it failed."""
        result = None if self._running is None else self._running.result()
        if result is not None:
            self.close()
            yield NodeChecked(self._fault(result), now)

    def _fault(self, result: CommandStatus) -> str:
        if not result.failure:
            return ""
        what = f'"{" ".join(self._command.split())}" {result.failure}'
        lines = [line for line in plain_lines(result.output) if line.strip()][-LAST_LINES:]
        shown = ["; its last lines:", "", *(f"    {line}" for line in lines)] if lines else [""]
        self._say(f"clusterrun: this node fails its check (--check): {what}" + "\n".join(shown))
        return as_line(": ".join((what, *(line.strip() for line in lines[-1:]))))
