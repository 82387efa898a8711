"""The launcher's own failures, with their exit codes.

    LauncherError
      UsageError        2   an option has an impossible value
      MachineError      3   the machine is not as a strict option demands
      RendezvousError   4   the nodes contradict each other or did not all join
      NodeLostError     5   a node of the running job is lost
      InternalError     6   a bug in clusterrun

A worker's failure is data (``clusterrun.domain.outcome``), never an exception.
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The launcher's own exit codes; a failed worker's code is passed on, 128 + N for signal N."""

    SUCCESS = 0
    USAGE = 2
    MACHINE = 3
    RENDEZVOUS = 4
    NODE_LOST = 5
    INTERNAL = 6
    SUSPENDED = 75
    NOT_EXECUTABLE = 126
    """The worker's program could not be started; the code that a shell gives."""


def exit_code_of_signal(number: int) -> int:
    """Return the exit code that a shell gives a process ended by signal ``number``: 128 + N."""
    return 128 + number


class LauncherError(Exception):
    """A failure of the launcher: what happened, what to do about it, and the exit code."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, message: str, hint: str = "") -> None:
        """Take ``message`` (what happened, to which value set where) and ``hint`` (what to type)."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    def explain(self) -> str:
        """Return the lines for the user's terminal, without a trailing newline."""
        lines = [f"clusterrun: error: {self.message}"]
        lines += [f"  {line}" for line in self.hint.splitlines()]
        return "\n".join(lines)


class UsageError(LauncherError):
    """An option has an impossible value."""

    exit_code = ExitCode.USAGE


class MachineError(LauncherError):
    """The machine is not as a strict option demands."""

    exit_code = ExitCode.MACHINE


class RendezvousError(LauncherError):
    """The nodes contradict each other or did not all join."""

    exit_code = ExitCode.RENDEZVOUS


class NodeLostError(LauncherError):
    """A node of the running job is lost."""

    exit_code = ExitCode.NODE_LOST


class InternalError(LauncherError):
    """A bug in clusterrun."""

    exit_code = ExitCode.INTERNAL
