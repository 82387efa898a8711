"""The actions that the policy of a node returns, for its agent to perform."""

from msgspec import Struct

from clusterrun.bounds import LocalRank
from clusterrun.planning.plan import World
from clusterrun.policy.messages import AgentMessage


class SignalWorkers(Struct, frozen=True):
    """Send signal ``number`` to these workers."""

    local_ranks: frozenset[LocalRank]
    number: int
    group: bool
    """Signal the worker's process group, not only the worker."""
    except_failing: bool = False
    """Skip workers whose script has already failed: they may still print their traceback."""


class StartWorkers(Struct, frozen=True):
    """Start these workers: the services that they wait for are ready."""

    local_ranks: frozenset[LocalRank]


class KillLeftovers(Struct, frozen=True):
    """Kill the left-over processes of these service workers, which have ended."""

    local_ranks: frozenset[LocalRank]


class RestartWorker(Struct, frozen=True):
    """Kill the left-over processes of this service worker, then start it again."""

    local_rank: LocalRank


class ProbeReadiness(Struct, frozen=True):
    """Probe this service worker until it is ready; ``WorkerReady`` or ``WorkerNotReady`` follows."""

    local_rank: LocalRank


class ForwardSignal(Struct, frozen=True):
    """Send signal ``number`` to every worker that has a handler for it."""

    number: int


class SendToCoordinator(Struct, frozen=True):
    """Send this message to the coordinator at once."""

    message: AgentMessage


class ReportFailure(Struct, frozen=True):
    """Report at once that this worker has failed; the coordinator then stops all nodes."""

    local_rank: LocalRank


class ReportExits(Struct, frozen=True):
    """Report that these workers have exited with 0, for which others may wait in a collective."""

    local_ranks: tuple[LocalRank, ...]


class ReportEnd(Struct, frozen=True):
    """Report how all workers of this node ended; the coordinator responds once all nodes have."""


class CollectOutput(Struct, frozen=True):
    """Have the relay write the rest of an exited worker's output; ``OutputEnded`` follows."""

    local_rank: LocalRank


class CleanUp(Struct, frozen=True):
    """Kill the left-over processes of the attempt; ``CleanedUp`` follows."""


class AwaitLeftovers(Struct, frozen=True):
    """Wait until no left-over process runs; ``NoLeftovers`` follows."""


class NameLeftovers(Struct, frozen=True):
    """Find the left-over processes; ``LeftoversNamed`` follows."""


class SignalLeftovers(Struct, frozen=True):
    """Send signal ``number`` to all left-over processes."""

    number: int


class SetDeadline(Struct, frozen=True):
    """Send a ``DeadlinePassed`` in ``seconds``, instead of at the previous deadline."""

    seconds: float


class Pause(Struct, frozen=True):
    """Stop all workers and then this agent, until SIGCONT."""


class Resume(Struct, frozen=True):
    """Continue all workers."""


class HoldRanks(Struct, frozen=True):
    """Hold each rank at its next call of ``suspend.requested``; ``RanksHeld`` follows."""


class ReleaseRanks(Struct, frozen=True):
    """Release held ranks."""

    step_count: int
    """The step count (1 + step) from which on they save; 0: they do not save."""


class LetRanksExit(Struct, frozen=True):
    """Let ranks that have saved exit, and release those that are held."""


class WatchActivity(Struct, frozen=True):
    """Start to watch whether any worker prints or exits within ``--hang-timeout``."""


class PrintNotice(Struct, frozen=True):
    """Print a line for the user."""

    text: str


class CollectStacks(Struct, frozen=True):
    """Have all workers of this node print their stacks; ``StacksCollected`` follows."""


class ExpectNoStacks(Struct, frozen=True):
    """Do not wait for the stacks of these workers, which have no handler."""

    local_ranks: tuple[LocalRank, ...]


class RunCheck(Struct, frozen=True):
    """Run ``--check``; ``NodeChecked`` follows."""


class Restart(Struct, frozen=True):
    """Start the next attempt, in this world."""

    world: World


class Rejoin(Struct, frozen=True):
    """Join again, and wait for a rank: the job continues without this node."""


class Finish(Struct, frozen=True):
    """End the agent: the job has ended."""


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
"""Actions on the workers of this node and their output."""

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
