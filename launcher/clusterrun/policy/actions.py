"""What the policy of a node asks its agent to do."""

from msgspec import Struct

from clusterrun.bounds import LocalRank
from clusterrun.planning.plan import World
from clusterrun.policy.messages import AgentMessage


class SignalWorkers(Struct, frozen=True):
    """Send signal ``number`` to these workers: to the worker itself, or to its whole group."""

    local_ranks: frozenset[LocalRank]
    number: int
    group: bool
    except_failing: bool = False
    """Leave out workers whose script has failed already: they may still print their traceback."""


class StartWorkers(Struct, frozen=True):
    """Start these workers: what they have waited for is ready."""

    local_ranks: frozenset[LocalRank]


class KillLeftovers(Struct, frozen=True):
    """Kill what these workers of services have left, which have ended."""

    local_ranks: frozenset[LocalRank]


class RestartWorker(Struct, frozen=True):
    """Kill what this worker of a service has left, then start it again."""

    local_rank: LocalRank


class ProbeReadiness(Struct, frozen=True):
    """Ask this worker of a service now and then; ``WorkerReady`` follows, or ``WorkerNotReady``."""

    local_rank: LocalRank


class ForwardSignal(Struct, frozen=True):
    """Send signal ``number`` to every worker that has a handler for it."""

    number: int


class SendToCoordinator(Struct, frozen=True):
    """Send this message to the coordinator at once."""

    message: AgentMessage


class ReportFailure(Struct, frozen=True):
    """Report at once that this worker has failed: the coordinator stops all nodes."""

    local_rank: LocalRank


class ReportExits(Struct, frozen=True):
    """Report that these workers have exited with 0: others may wait for them."""

    local_ranks: tuple[LocalRank, ...]


class ReportEnd(Struct, frozen=True):
    """Report how all workers of this node ended; the coordinator answers when all nodes have."""


class CollectOutput(Struct, frozen=True):
    """Have the relay write the rest of an exited worker's output; ``OutputEnded`` has its tail."""

    local_rank: LocalRank


class CleanUp(Struct, frozen=True):
    """Kill what the workers of the attempt left behind."""


class AwaitLeftovers(Struct, frozen=True):
    """Have a ``NoLeftovers`` once nothing runs any more that the workers have started."""


class NameLeftovers(Struct, frozen=True):
    """Have a ``Left`` that names what the workers have left running."""


class SignalLeftovers(Struct, frozen=True):
    """Send signal ``number`` to all that the workers have left running."""

    number: int


class SetDeadline(Struct, frozen=True):
    """Have a ``DeadlinePassed`` in ``seconds``; this replaces the last deadline."""

    seconds: float


class Pause(Struct, frozen=True):
    """Stop all workers and then this agent, until SIGCONT."""


class Resume(Struct, frozen=True):
    """Continue all workers."""


class HoldRanks(Struct, frozen=True):
    """Hold each rank at its next call of ``suspend.requested``; ``RanksHeld`` follows."""


class ReleaseRanks(Struct, frozen=True):
    """Let held ranks go on, and have them save from ``mark`` on; 0: go on without saving."""

    mark: int


class LetRanksExit(Struct, frozen=True):
    """Let ranks that have saved exit; those that are held go on."""


class WatchActivity(Struct, frozen=True):
    """Find out from now on whether no worker prints or exits for ``--hang-timeout``."""


class PrintNotice(Struct, frozen=True):
    """Print one line for the user."""

    text: str


class CollectStacks(Struct, frozen=True):
    """Have all workers of this node print their stacks; ``StacksCollected`` follows."""


class ExpectNoStacks(Struct, frozen=True):
    """Do not wait for the stacks of these workers, which have no handler."""

    local_ranks: tuple[LocalRank, ...]


class RunCheck(Struct, frozen=True):
    """Run ``--check``; ``NodeChecked`` follows."""


class Restart(Struct, frozen=True):
    """The attempt is over: start the next one, in this world."""

    world: World


class Rejoin(Struct, frozen=True):
    """The attempt is over, and the job goes on without this node: join again, and wait for a place."""


class Finish(Struct, frozen=True):
    """The job is over."""


WorkersAction = (
    SignalWorkers
    | StartWorkers
    | KillLeftovers
    | RestartWorker
    | ForwardSignal
    | CollectOutput
    | CleanUp
    | AwaitLeftovers
    | NameLeftovers
    | SignalLeftovers
    | Resume
    | ExpectNoStacks
    | HoldRanks
    | ReleaseRanks
    | LetRanksExit
    | WatchActivity
    | PrintNotice
)
"""What concerns the workers of this node and their output."""

Action = (
    WorkersAction
    | ProbeReadiness
    | SendToCoordinator
    | ReportFailure
    | ReportExits
    | ReportEnd
    | CollectStacks
    | SetDeadline
    | Pause
    | RunCheck
    | Restart
    | Rejoin
    | Finish
)
