"""How a job ended on this node: the result of every worker and the reason for the end."""

import signal
from collections.abc import Iterable
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
    named_ranks,
)
from clusterrun.errors import ExitCode, exit_code_of_signal

Step = Annotated[int, Meta(ge=0, lt=1 << 62)]

MAX_RANKS = 1024
"""Ranks of one node that are named; the first ones are enough for a report."""

Ranks = Annotated[tuple[Count, ...], Meta(max_length=MAX_RANKS)]


class Exited(Struct, frozen=True, tag=True):
    """The worker exited with ``code``."""

    code: StatusCode

    @property
    def succeeded(self) -> bool:
        return self.code == 0


class Killed(Struct, frozen=True, tag=True):
    """The worker was killed by signal ``number``."""

    number: SignalNumber
    succeeded: ClassVar[bool] = False


class NotStarted(Struct, frozen=True, tag=True):
    """The worker never ran its program: ``step`` of its start failed with ``error``."""

    step: Name
    error: Line
    succeeded: ClassVar[bool] = False


class EndedEarly(Struct, frozen=True, tag=True):
    """The worker of a service exited with 0 while the job went on."""

    succeeded: ClassVar[bool] = False


class NotReady(Struct, frozen=True, tag=True):
    """The worker of a service had not become ready in ``seconds``, and was killed for it."""

    seconds: Seconds
    why: Line
    """What became of the last try to reach it."""
    succeeded: ClassVar[bool] = False


ExitStatus = Exited | Killed | NotStarted | EndedEarly | NotReady


class WorkerResult(Struct, frozen=True):
    """How one worker of one attempt ended, with all that the report needs."""

    rank: Annotated[GlobalRank, NON_NEGATIVE]
    local_rank: Annotated[LocalRank, NON_NEGATIVE]
    host: Name
    pid: ProcessId
    """0 if no process was started."""
    exit_status: ExitStatus
    stopped_by_us: bool
    """The launcher had begun to stop this node's workers before this one failed or exited.

    It is a consequence, unless it failed for a reason of its own: see ``cause``.
    """
    clock: WallClock
    """When it failed, else when it ended, by its host's wall clock in seconds since the epoch.

    Only for messages: the order of failures is decided by ages, since clocks of hosts may differ.
    """
    ran_for: Seconds
    """Seconds from start to end."""
    tail: Text
    """The last lines of its standard error; "" if that was the terminal."""
    log: Line
    """The file that holds its standard error; "" without ``--log-dir``."""
    error: Text
    """What it wrote to its TORCHELASTIC_ERROR_FILE, JSON as text; "" if nothing."""
    out_of_memory: Line
    """Evidence of a kill by the kernel's OOM killer, in words; "" if there is none."""
    hung: Text = ""
    """The stack in which it hung after its failure, until it was killed; "" if it exited."""
    killed_by_others: bool = False
    """SIGKILL ended it while the launcher was stopping it, and had sent no more than SIGTERM."""
    service: Name = ""
    """The service that it was a worker of; "": the main program."""
    rank_in_service: Count = 0

    @property
    def worker(self) -> str:
        """It, as messages name it: "rank 3", "server rank 0"."""
        return (
            f"{self.service} rank {self.rank_in_service}" if self.service else f"rank {self.rank}"
        )


class Succeeded(Struct, frozen=True, tag=True):
    """Every worker exited with 0."""


class EarlierExits(Struct, frozen=True):
    """Peers of a worker that had exited with 0 when it failed."""

    ranks: Ranks
    """Within their program; the first of many."""
    more: Count
    """Others, too many to be named."""
    seconds: Seconds
    """From the last of these exits to the failure."""


class WorkerFailed(Struct, frozen=True, tag=True):
    """The failure of a worker, ``cause``, ended the job."""

    cause: WorkerResult
    fails_check: bool = False
    """Its node has failed ``--check`` since, and no other one has taken its place."""
    earlier: EarlierExits | None = None
    """Peers for which it may have waited; None if there are none."""


class Interrupted(Struct, frozen=True, tag=True):
    """Signal ``number`` from outside ended the job."""

    number: SignalNumber


class OutputGone(Struct, frozen=True, tag=True):
    """The reader of our standard output is gone (``| head``)."""


class HelperFailed(Struct, frozen=True, tag=True):
    """The helper process ``name`` died; ``signal`` is 0 if it exited."""

    name: Line
    how: Line
    signal: SignalNumberOrZero


class NodeLost(Struct, frozen=True, tag=True):
    """Node ``node_rank`` on ``host`` is lost."""

    node_rank: Count
    host: Name
    how: Line = "is gone"
    """Or "has been silent for 15 s"."""
    is_task: bool = False
    """It is one of several tasks of its node, and ``node_rank`` counts these."""

    def __str__(self) -> str:
        """Return "node 1"."""
        return f"{'task' if self.is_task else 'node'} {self.node_rank}"


class HangSign(Enum):
    """By what a hang is known."""

    SILENT = "silent"
    """No rank prints or exits."""
    STILL = "still"
    """Ranks print, and no main thread runs."""
    BEHIND = "behind"
    """NCCL launches nothing on any rank, and has launched less on some."""


class Hung(Struct, frozen=True, tag=True):
    """The job has hung for ``seconds``, and ``--on-hang`` acts on it."""

    seconds: Seconds
    stragglers: Ranks
    """The ranks for which the others waited, as far as the stacks tell; the first of many."""
    where: Line
    """Which ranks are where, in one line; "": all are at one place."""
    sign: HangSign = HangSign.SILENT


class Suspended(Struct, frozen=True, tag=True):
    """All ranks have saved at ``step``, ``seconds`` after ``by`` asked for it."""

    by: Line
    step: Step
    seconds: Seconds
    exit_code: StatusCode
    silent: Ranks = ()
    """Ranks that have never called ``suspend.requested``: they were stopped."""


class NotSuspended(Struct, frozen=True, tag=True):
    """A suspension was agreed on, and not all ranks have saved in time."""

    by: Line
    step: Step
    grace: Seconds
    unsaved: Ranks
    silent: Ranks = ()
    is_given_up: bool = False
    """The suspension was asked for again, so that these ranks had less time."""


ExternalCause = Interrupted | OutputGone | HelperFailed | Suspended | NotSuspended
"""What ends a job from outside its workers, on a node whose agent can still report it."""

ReasonToRestart = WorkerFailed | NodeLost | Hung
"""What an attempt has ended by that another one follows."""

Reason = Succeeded | WorkerFailed | ExternalCause | NodeLost | Hung


class Replacement(Struct, frozen=True):
    """The place of a lost node, and who has it now."""

    lost: NodeLost
    host: Name
    """Of the node that takes the place; "" if it is given up."""


MAX_REPLACEMENTS = 64
"""Lost nodes that one message names."""


class RestartProgress(Struct, frozen=True):
    """What a job has gone through, as the next attempt begins."""

    restarts: Count = 0
    """Attempts that followed the failure of a worker, the next one included."""
    losses: Count = 0
    """Nodes that were lost, and did not end the job."""
    replacements: Annotated[tuple[Replacement, ...], Meta(max_length=MAX_REPLACEMENTS)] = ()
    """Of the nodes lost in the last attempt; the first of many."""
    nodes: Count = 0
    """Of the next attempt, if the number may change."""


class Outcome(Struct, frozen=True):
    """The end of a job, or of an attempt that another one follows."""

    reason: Reason
    attempt: int
    results: tuple[WorkerResult, ...]
    """Of all workers of the attempt, by rank."""
    survivors: tuple[str, ...]
    """Processes that even SIGKILL did not end: "pid 12 (python, state D in nfs_wait)"."""
    no_restart: str = ""
    """Why no restart follows although one would be allowed; "" otherwise."""
    failure: WorkerResult | None = None
    """The worker that failed before a signal ended the job; None if none did."""
    progress: RestartProgress | None = None
    """If another attempt follows."""

    @property
    def cause(self) -> WorkerResult | None:
        """The worker whose failure the report explains; None if there is none."""
        return self.reason.cause if isinstance(self.reason, WorkerFailed) else self.failure

    @property
    def cause_ran_here(self) -> bool:
        """Whether that worker ran on this node."""
        cause = self.cause
        return cause is not None and any(result.rank == cause.rank for result in self.results)

    @property
    def exit_code(self) -> int:
        """The launcher's exit code (table in ``clusterrun.errors``)."""
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
    """The end of a job as one node knows it."""

    outcome: Outcome
    """How the job, or its last attempt, ended; with the results of this node's workers."""
    has_begun: bool = True
    """The nodes had joined."""
    already_shown: bool = False
    """The standard error of the worker that failed was just printed without a prefix, as it is the
    only worker: its tail is not repeated."""
    hidden: Line = ""
    """The option that hid the output of the worker that failed; "" if none did."""
    had_input: bool = True
    """The worker that failed could read standard input, which was not /dev/null."""
    flight_records: Line = ""
    """Names the files of torch's flight recorder; "" if there are none."""


def named(results: Iterable[WorkerResult]) -> str:
    """Return workers as messages name them: "ranks 0-3, server rank 2"."""
    ranks: dict[str, list[int]] = {}
    for result in results:
        own = result.rank_in_service if result.service else result.rank
        ranks.setdefault(result.service, []).append(own)
    return ", ".join(
        f"{service} {named_ranks(own)}" if service else named_ranks(own)
        for service, own in ranks.items()
    )


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
