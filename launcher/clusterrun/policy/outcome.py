"""How a job ended: the result of each worker, and the reason."""

import signal
from enum import Enum
from typing import Annotated, ClassVar, assert_never

from msgspec import Meta, Struct

from clusterrun.bounds import (
    NON_NEGATIVE,
    Count,
    GlobalRank,
    Line,
    LocalRank,
    Name,
    ProcessId,
    Seconds,
    SignalNumber,
    SignalNumberOrZero,
    StatusCode,
    Text,
    WallClock,
)
from clusterrun.errors import ExitCode, exit_code_of_signal

Step = Annotated[int, Meta(ge=0, lt=1 << 62)]

MAX_RANKS = 1024
"""Ranks that one message names: enough for a report."""

Ranks = Annotated[tuple[Count, ...], Meta(max_length=MAX_RANKS)]


class Exited(Struct, frozen=True, tag=True):
    """The worker exited by itself."""

    code: StatusCode

    @property
    def succeeded(self) -> bool:
        return self.code == 0


class Killed(Struct, frozen=True, tag=True):
    """A signal killed the worker."""

    number: SignalNumber
    succeeded: ClassVar[bool] = False


class NotStarted(Struct, frozen=True, tag=True):
    """The worker never ran its program: ``step`` of its start failed."""

    step: Name
    error: Line
    succeeded: ClassVar[bool] = False


class EndedEarly(Struct, frozen=True, tag=True):
    """The worker of a service exited with 0 while the job went on."""

    succeeded: ClassVar[bool] = False


class NotReady(Struct, frozen=True, tag=True):
    """The worker of a service was killed because it was not ready within ``seconds``."""

    seconds: Seconds
    why: Line
    """The error of the last probe."""
    succeeded: ClassVar[bool] = False


ExitStatus = Exited | Killed | NotStarted | EndedEarly | NotReady


class WorkerResult(Struct, frozen=True):
    """How a worker ended in one attempt, with everything the report needs."""

    rank: Annotated[GlobalRank, NON_NEGATIVE]
    local_rank: Annotated[LocalRank, NON_NEGATIVE]
    host: Name
    pid: ProcessId
    """0 if no process was started."""
    exit_status: ExitStatus
    stopped_by_us: bool
    """The launcher was already stopping this node's workers when this one failed or exited.

    Such a result is a consequence, unless the worker failed for a reason of its own: see ``cause``.
    """
    clock: WallClock
    """When the worker failed, or else ended, by the wall clock of its host, for messages only.

    The order of failures is decided by their ages, because the clocks of hosts differ.
    """
    ran_for: Seconds
    """From start to end."""
    tail: Text
    """The last lines of its standard error; "" if that was the terminal."""
    log: Line
    """The file with its standard error; "" without ``--log-dir``."""
    error: Text
    """The JSON that it wrote to its TORCHELASTIC_ERROR_FILE, undecoded; "" if it wrote none."""
    out_of_memory: Line
    """Evidence that the kernel's OOM killer ended it, in words; "" if there is none."""
    hung: Text = ""
    """The stack of a failed worker that did not exit and was killed; "" if it exited."""
    killed_by_others: bool = False
    """SIGKILL ended it when the launcher had sent no more than SIGTERM."""
    service: Name = ""
    """Its service; "" for the main program."""
    rank_in_service: Count = 0

    @property
    def worker(self) -> str:
        """The worker's name in messages: "rank 3", "server rank 0"."""
        return (
            f"{self.service} rank {self.rank_in_service}" if self.service else f"rank {self.rank}"
        )

    @property
    def is_oom_victim(self) -> bool:
        """Whether the kernel's OOM killer ended it; otherwise a peer may have been its victim."""
        return bool(self.out_of_memory) and self.exit_status == Killed(signal.SIGKILL)


class Succeeded(Struct, frozen=True, tag=True):
    """Every worker exited with 0."""


class EarlierExits(Struct, frozen=True):
    """The peers that had exited with code 0 when a worker failed."""

    ranks: Ranks
    """The first ranks within the program."""
    more: Count
    """The number of other ranks."""
    seconds: Seconds
    """From the last of these exits to the failure."""


class WorkerFailed(Struct, frozen=True, tag=True):
    """The failure of a worker ended the job."""

    cause: WorkerResult
    fails_check: bool = False
    """The worker's node failed ``--check`` afterwards, and no spare replaced the node."""
    earlier: EarlierExits | None = None
    """Peers that the worker may have waited for."""


class Interrupted(Struct, frozen=True, tag=True):
    """A signal to the launcher ended the job."""

    number: SignalNumber


class OutputGone(Struct, frozen=True, tag=True):
    """The reader of our standard output is gone (``| head``)."""


class HelperFailed(Struct, frozen=True, tag=True):
    """A helper process of an agent died."""

    name: Line
    """"fork server" or "relay"."""
    how: Line
    """"exited with code 1" or "was killed by SIGKILL"."""
    signal: SignalNumberOrZero
    """The signal that killed it; 0 if it exited."""


class NodeLost(Struct, frozen=True, tag=True):
    """A node left the job, or is silent, before its workers had ended."""

    node_rank: Count
    host: Name
    how: Line = "is gone"
    """Or "has been silent for 15 s"."""
    is_task: bool = False
    """This clusterrun is one of several tasks of a node, and ``node_rank`` is the task's number."""

    def __str__(self) -> str:
        """Return "node 1"."""
        return f"{'task' if self.is_task else 'node'} {self.node_rank}"


class HangSign(Enum):
    """The evidence of a hang."""

    SILENT = "silent"
    """No rank prints or exits."""
    STILL = "still"
    """Ranks print, but no main thread runs."""
    BEHIND = "behind"
    """NCCL launches no collective on any rank, and some ranks have launched fewer than others."""


class Hung(Struct, frozen=True, tag=True):
    """The job has hung for ``seconds``, and ``--on-hang`` acts on it."""

    seconds: Seconds
    stragglers: Ranks
    """The first ranks that the others waited for; none if the stacks do not show it."""
    where: Line
    """The ranks by their position in the script, in one line; "" if all have the same."""
    sign: HangSign = HangSign.SILENT


class Suspended(Struct, frozen=True, tag=True):
    """All ranks saved a checkpoint, and the job ended."""

    by: Line
    """The signal or option that requested the suspension."""
    step: Step
    seconds: Seconds
    """From the request to the last checkpoint."""
    exit_code: StatusCode
    silent: Ranks = ()
    """Ranks that never called ``suspend.requested`` and were stopped."""


class NotSuspended(Struct, frozen=True, tag=True):
    """A suspension had begun, but not all ranks saved in time."""

    by: Line
    step: Step | None
    """At which the ranks were asked to save; None: the nodes of ``unsaved`` did not answer."""
    grace: Seconds
    unsaved: Ranks
    silent: Ranks = ()
    was_cut_short: bool = False
    """A second request ended the grace period early."""


ExternalCause = Interrupted | OutputGone | HelperFailed | Suspended | NotSuspended
"""A reason other than the workers, which the agent of the node reports."""

ReasonToRestart = WorkerFailed | NodeLost | Hung
"""A reason for the end of an attempt that another attempt may follow."""

Reason = Succeeded | WorkerFailed | ExternalCause | NodeLost | Hung


class Replacement(Struct, frozen=True):
    """A lost node, and the node that has its rank in the next attempt."""

    lost: NodeLost
    host: Name
    """The host of the replacement; "" if there is none."""


MAX_REPLACEMENTS = 64
"""Replacements that one message has."""


class RestartProgress(Struct, frozen=True):
    """The restarts and losses of a job when the next attempt begins."""

    restarts: Count = 0
    """Restarts after a worker's failure, with the one that begins."""
    losses: Count = 0
    """Lost nodes that did not end the job."""
    replacements: Annotated[tuple[Replacement, ...], Meta(max_length=MAX_REPLACEMENTS)] = ()
    """The first replacements of nodes that were lost in the last attempt."""
    nodes: Count = 0
    """The number of nodes of the next attempt; 0 if it cannot change."""


class Outcome(Struct, frozen=True):
    """How a job, or one attempt of it, ended on this node."""

    reason: Reason
    attempt: int
    results: tuple[WorkerResult, ...]
    """The results of this node's workers, by rank."""
    survivors: tuple[str, ...]
    """Processes that SIGKILL did not end: "pid 12 (python, state D in nfs_wait)"."""
    no_restart: str = ""
    """Why no restart follows although ``--max-restarts`` allows one."""
    failure: WorkerResult | None = None
    """The worker that failed before a signal ended the job."""
    progress: RestartProgress | None = None
    """Set if another attempt follows."""

    @property
    def cause(self) -> WorkerResult | None:
        """The worker whose failure the report explains."""
        return self.reason.cause if isinstance(self.reason, WorkerFailed) else self.failure

    @property
    def cause_ran_here(self) -> bool:
        """Whether the worker in ``cause`` ran on this node."""
        cause = self.cause
        return cause is not None and any(result.rank == cause.rank for result in self.results)

    @property
    def exit_code(self) -> int:
        """The launcher's exit code: see ``clusterrun.errors``."""
        match self.reason:
            case Succeeded():
                return ExitCode.SUCCESS
            case WorkerFailed(fails_check=True):
                return ExitCode.MACHINE
            case WorkerFailed(cause):
                return exit_code_of(cause.exit_status)
            case Interrupted(number):
                return exit_code_of_signal(number)
            case OutputGone():
                return exit_code_of_signal(signal.SIGPIPE)
            case NodeLost():
                return ExitCode.NODE_LOST
            case Hung():
                return ExitCode.HUNG
            case HelperFailed(_, _, number):
                return exit_code_of_signal(number) if number else ExitCode.INTERNAL
            case Suspended():
                return self.reason.exit_code
            case NotSuspended():
                return ExitCode.HUNG
            case _:
                assert_never(self.reason)


class Report(Struct, frozen=True):
    """What the report at the end of a job is made of."""

    outcome: Outcome
    has_begun: bool = True
    """All nodes had joined."""
    already_shown: bool = False
    """The failed worker is the only one and its standard error was printed without a prefix, so the
    report does not repeat its last lines."""
    hidden: Line = ""
    """The option that hid the output of the failed worker; "" if none did."""
    had_input: bool = True
    """The standard input of the failed worker was not /dev/null."""
    flight_records: Line = ""
    """A line that names the files of torch's flight recorder; "" if there are none."""


def exit_code_of(exit_status: ExitStatus) -> int:
    """Return the worker's exit code, or 128 + its signal."""
    match exit_status:
        case Exited(code):
            return code
        case Killed(number):
            return exit_code_of_signal(number)
        case NotStarted():
            return ExitCode.NOT_EXECUTABLE
        case EndedEarly() | NotReady():
            return 1
        case _:
            assert_never(exit_status)
