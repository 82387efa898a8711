"""What the policy can ask for; performed by ``agent.supervisor``."""

from msgspec import Struct

from clusterrun.domain.outcome import (
    ExternalCause,
)
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.stacks import StackGroup


class SignalWorkers(Struct, frozen=True):
    """Send signal ``number`` to these workers: to the worker itself, or to its whole group."""

    local_ranks: frozenset[LocalRank]
    number: int
    group: bool
    spare_failing: bool = False
    """Leave out workers whose script has failed already: they may still print why."""


class ForwardSignal(Struct, frozen=True):
    """Send signal ``number`` to every worker that has a handler for it."""

    number: int


class ReportFailure(Struct, frozen=True):
    """Let the other nodes know at once that this worker has failed."""

    local_rank: LocalRank


class ReportExternalCause(Struct, frozen=True):
    """Let the other nodes know at once what, other than a worker, ends the job."""

    external_cause: ExternalCause


class ReportEnd(Struct, frozen=True):
    """Let the coordinator know how all workers of this node ended; its verdict follows."""


class DeclineRestart(Struct, frozen=True):
    """Let the coordinator know that we start no worker of the attempt that it has begun, and why."""


class CollectOutput(Struct, frozen=True):
    """Have the relay write what is left of an ended worker's output, and tell its tail."""

    local_rank: LocalRank


class CleanUp(Struct, frozen=True):
    """Kill whatever the attempt's workers have left behind."""


class SetDeadline(Struct, frozen=True):
    """Wake the policy with ``DeadlinePassed`` in so many seconds; replaces the last deadline."""

    seconds: float


class HideInterrupts(Struct, frozen=True):
    """Leave the workers' KeyboardInterrupt tracebacks off the screen: the user knows."""


class Suspend(Struct, frozen=True):
    """Stop all workers, and then ourselves, until SIGCONT."""


class Resume(Struct, frozen=True):
    """We run again: continue all workers."""


class PrintNotice(Struct, frozen=True):
    """Print one notice for the user."""

    text: str


class RequestStacks(Struct, frozen=True):
    """Have the coordinator ask all nodes, this one too, for the stacks of their workers."""


class CollectStacks(Struct, frozen=True):
    """Have all workers of this node tell their stacks: ``StacksCollected``."""

    number: int


class ExpectNoStacks(Struct, frozen=True):
    """These workers will tell none: they have no handler."""

    local_ranks: tuple[LocalRank, ...]


class ReportStacks(Struct, frozen=True):
    """Answer the coordinator's n-th question with stacks by local rank."""

    number: int
    groups: tuple[StackGroup, ...]


class ReportStillness(Struct, frozen=True):
    """Let the coordinator know that nothing has moved here for so long; 0: something does again."""

    seconds: float


class PrintStacks(Struct, frozen=True):
    """Print stacks, and keep them with the logs."""

    text: str


class Restart(Struct, frozen=True):
    """The attempt is over: start the next one."""


class Finish(Struct, frozen=True):
    """The job is over."""


AboutStacks = (
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
    | AboutStacks
    | Restart
    | Finish
)
