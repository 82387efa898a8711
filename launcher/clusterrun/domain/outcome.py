"""How a job ended on this node: the fate of every worker, and the reason for the end."""

import signal
from typing import Annotated, ClassVar, assert_never

from msgspec import Struct

from clusterrun.domain.bounds import (
    COUNTED,
    Count,
    ExitStatus,
    Line,
    Name,
    NoSignalOrNumber,
    ProcessId,
    Seconds,
    SignalNumber,
    Text,
    WallClock,
)
from clusterrun.domain.ranks import GlobalRank, LocalRank
from clusterrun.errors import ExitCode, exit_code_of_signal


class Exited(Struct, frozen=True, tag=True):
    """Ended by itself with exit code ``code``."""

    code: ExitStatus

    @property
    def succeeded(self) -> bool:
        """Whether this is the only good end."""
        return self.code == 0


class Killed(Struct, frozen=True, tag=True):
    """Ended by signal ``number``."""

    number: SignalNumber
    succeeded: ClassVar[bool] = False


class NotStarted(Struct, frozen=True, tag=True):
    """Never ran the program: the ``step`` of the start that failed, and its ``error``."""

    step: Name
    error: Line
    succeeded: ClassVar[bool] = False


Ending = Exited | Killed | NotStarted


class Fate(Struct, frozen=True):
    """How one worker of one attempt ended, with all that the report says of it."""

    rank: Annotated[GlobalRank, COUNTED]
    local_rank: Annotated[LocalRank, COUNTED]
    host: Name
    pid: ProcessId
    """0 where there never was a process to speak of."""
    ending: Ending
    stopped_by_us: bool
    """It ended after we had signalled it: not a cause."""
    clock: WallClock
    """When it failed, else when it ended: its own host's wall clock, seconds since the epoch.

    For people; what is earlier is told by ages, since clocks of hosts need not agree.
    """
    ran_for: Seconds
    """Seconds from its start to its end."""
    tail: Text
    """The last lines of its standard error; "" where that was the terminal's own."""
    log: Line
    """The file that holds its standard error; "" without ``--log-dir``."""
    error: Text
    """What it wrote to its TORCHELASTIC_ERROR_FILE, undecoded JSON; "" if nothing."""
    out_of_memory: Line
    """Evidence that the kernel's OOM killer struck here, in words; "" if it did not."""


class Succeeded(Struct, frozen=True, tag=True):
    """Every worker ended with exit code 0."""


class WorkerFailed(Struct, frozen=True, tag=True):
    """The worker of ``cause`` failed first; the job ended because of it."""

    cause: Fate


class Interrupted(Struct, frozen=True, tag=True):
    """Signal ``number`` came from outside and ended the job in order."""

    number: SignalNumber


class OutputGone(Struct, frozen=True, tag=True):
    """The reader of our standard output went away (``| head``)."""


class HelperFailed(Struct, frozen=True, tag=True):
    """A process of ours died: its ``name`` and ``how``; ``signal`` is 0 if it exited by itself."""

    name: Line
    how: Line
    signal: NoSignalOrNumber


class NodeLost(Struct, frozen=True, tag=True):
    """The agent of node ``node_rank`` on ``host`` is gone, or the network to it."""

    node_rank: Count
    host: Name
    how: Line = "is gone"
    """What is known of it: or "has been silent for 15 s"."""


ExternalCause = Interrupted | OutputGone | HelperFailed
"""What ends a job from outside its workers, on a node whose agent can still report it."""

Reason = Succeeded | WorkerFailed | Interrupted | OutputGone | HelperFailed | NodeLost


class Outcome(Struct, frozen=True):
    """The end of a job, or of one attempt that is followed by another."""

    reason: Reason
    attempt: int
    fates: tuple[Fate, ...]
    """Of all workers that were asked for in this attempt, by rank."""
    survivors: tuple[str, ...]
    """Processes that even SIGKILL did not end: "pid 12 (python, state D in nfs_wait)"."""
    no_restart: str = ""
    """Why no other attempt follows though there may be more, in words; "" if there is no more to say."""
    failure: Fate | None = None
    """The worker that had failed before a signal ended the job; None if none had."""

    @property
    def cause(self) -> Fate | None:
        """The worker whose failure is to be explained; None if there is none."""
        return self.reason.cause if isinstance(self.reason, WorkerFailed) else self.failure

    @property
    def exit_code(self) -> int:
        """The launcher's exit code for this end (table in ``clusterrun.errors``)."""
        match self.reason:
            case Succeeded():
                return ExitCode.SUCCESS
            case WorkerFailed(cause):
                return exit_code_of(cause.ending)
            case Interrupted(number):
                return exit_code_of_signal(number)
            case OutputGone():
                return exit_code_of_signal(signal.SIGPIPE)
            case NodeLost():
                return ExitCode.NODE_LOST
            case HelperFailed(_, _, number):
                return exit_code_of_signal(number) if number else ExitCode.INTERNAL
            case _:
                assert_never(self.reason)


def exit_code_of(ending: Ending) -> int:
    """Return the exit code that stands for ``ending``: the worker's own, or 128 + its signal."""
    match ending:
        case Exited(code):
            return code
        case Killed(number):
            return exit_code_of_signal(number)
        case NotStarted():
            # As a shell: the command could not be executed.
            return ExitCode.NOT_EXECUTABLE
        case _:
            assert_never(ending)
