"""What ``decide`` asks the supervisor to do."""

from msgspec import Struct

from clusterrun.domain.outcome import ExternalCause
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.stacks import StackGroup


class SignalWorkers(Struct, frozen=True):
    """Send signal ``number`` to these workers: to the worker itself, or to its whole group."""

    local_ranks: frozenset[LocalRank]
    number: int
    group: bool
    spare_failing: bool = False
    """Leave out workers whose script has failed already: they may still print their traceback."""


class ForwardSignal(Struct, frozen=True):
    """Send signal ``number`` to every worker that has a handler for it."""

    number: int


class ReportFailure(Struct, frozen=True):
    """Report at once that this worker has failed: the coordinator stops all nodes."""

    local_rank: LocalRank


class ReportExternalCause(Struct, frozen=True):
    """Report at once what ends the job from outside its workers: the coordinator stops all nodes."""

    external_cause: ExternalCause


class ReportEnd(Struct, frozen=True):
    """Report how all workers of this node ended; the coordinator answers when all nodes have."""


class DeclineRestart(Struct, frozen=True):
    """Report that this node starts no worker of the attempt that the coordinator has begun, and why."""


class CollectOutput(Struct, frozen=True):
    """Have the relay write the rest of an exited worker's output; ``OutputEnded`` has its tail."""

    local_rank: LocalRank


class CleanUp(Struct, frozen=True):
    """Kill what the workers of the attempt left behind."""


class SetDeadline(Struct, frozen=True):
    """Have a ``DeadlinePassed`` in ``seconds``; this replaces the last deadline."""

    seconds: float


class HideInterrupts(Struct, frozen=True):
    """Print no KeyboardInterrupt tracebacks of workers: the user pressed Ctrl-C."""


class Suspend(Struct, frozen=True):
    """Stop all workers and then this agent, until SIGCONT."""


class Resume(Struct, frozen=True):
    """Continue all workers."""


class PrintNotice(Struct, frozen=True):
    """Print one line for the user."""

    text: str


class RequestStacks(Struct, frozen=True):
    """Have the coordinator request the stacks of the workers of all nodes."""


class CollectStacks(Struct, frozen=True):
    """Have all workers of this node print their stacks; ``StacksCollected`` follows."""

    number: int


class ExpectNoStacks(Struct, frozen=True):
    """Do not wait for the stacks of these workers, which have no handler."""

    local_ranks: tuple[LocalRank, ...]


class ReportStacks(Struct, frozen=True):
    """Answer the coordinator's n-th request with stacks by local rank."""

    number: int
    groups: tuple[StackGroup, ...]


class ReportStillness(Struct, frozen=True):
    """Report that no worker has printed or exited for ``seconds``; 0: one has again."""

    seconds: float


class PrintStacks(Struct, frozen=True):
    """Print stacks, and keep them with the logs."""

    text: str


class Restart(Struct, frozen=True):
    """The attempt is over: start the next one."""


class Finish(Struct, frozen=True):
    """The job is over."""


StackAction = (
    RequestStacks | CollectStacks | ExpectNoStacks | ReportStacks | ReportStillness | PrintStacks
)

Action = (
    SignalWorkers
    | ForwardSignal
    | ReportFailure
    | ReportExternalCause
    | ReportEnd
    | DeclineRestart
    | CollectOutput
    | CleanUp
    | SetDeadline
    | HideInterrupts
    | Suspend
    | Resume
    | PrintNotice
    | StackAction
    | Restart
    | Finish
)
