"""Everything that happens while a job runs, as one agent sees it.

``at`` is in seconds of the agent's monotonic clock.
"""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.bounds import LocalRank
from clusterrun.planning.plan import World
from clusterrun.policy.messages import Order, QueryMessage
from clusterrun.policy.outcome import ExitStatus, NodeLost
from clusterrun.policy.stacks import StackGroup
from clusterrun.signals import ChildEnded, SignalReceived


class WorkerStarted(Struct, frozen=True):
    """The worker has executed its program."""

    local_rank: LocalRank
    pid: int
    remark: str
    """Why its binding differs from the plan; "" if it does not."""
    at: float


class WorkerEnded(Struct, frozen=True):
    """The worker's process has ended, perhaps before its program ran."""

    local_rank: LocalRank
    exit_status: ExitStatus
    at: float
    since_failure: float = 0.0
    """Seconds since its exception left the script; 0.0 if only the time of the end is known.

    Exit handlers may take long, while peers fail because this worker is missing.
    """
    by_lease: bool = False
    """Its fork server has killed it, or has not started it, because its lease was over."""


class WorkerFailing(Struct, frozen=True):
    """The worker's script has failed ``since_failure`` seconds ago, and its process still runs."""

    local_rank: LocalRank
    at: float
    since_failure: float


class WorkerReady(Struct, frozen=True):
    """The worker of a service has answered."""

    local_rank: LocalRank
    at: float


class WorkerNotReady(Struct, frozen=True):
    """The worker of a service has not answered in time."""

    local_rank: LocalRank
    why: str
    """What became of the last try."""
    at: float


class WorkerStopped(Struct, frozen=True):
    """A worker was stopped by a signal: the one in the foreground by Ctrl-Z, others by a debugger."""

    at: float


class SuspensionRequested(Struct, frozen=True):
    """All ranks of the job are to save at one step and end: the seam for all kinds of requests."""

    by: str
    """Who or what wants it, for messages: "SIGUSR1" or "--suspend-before 300"."""
    at: float


class StopRequested(Struct, frozen=True):
    """The job is to end, by a user's command or with its caller: also one that may be suspended."""

    by: str
    """The command, or what has happened, for messages."""
    at_once: bool
    """Without a grace period."""
    at: float


class RankCalledSuspend(Struct, frozen=True):
    """The rank has called ``suspend.requested`` for the first time."""

    local_rank: LocalRank
    at: float


class RanksHeld(Struct, frozen=True):
    """All ranks that call are held, and have been for long enough: ``mark`` is the highest."""

    mark: int
    at: float


class RankSaved(Struct, frozen=True):
    """The rank has called ``suspend.ready``, after saving at ``mark``."""

    local_rank: LocalRank
    mark: int
    at: float


RankEvent = RankCalledSuspend | RanksHeld | RankSaved


class SignalNotHandled(Struct, frozen=True):
    """Signal ``number`` was not forwarded to ``local_ranks``, which have no handler for it."""

    number: int
    local_ranks: tuple[LocalRank, ...]
    at: float


class DeadlinePassed(Struct, frozen=True):
    """The deadline of the last ``SetDeadline`` has passed."""

    at: float


class CleanedUp(Struct, frozen=True):
    """No process of the attempt is left except ``survivors``: "pid 12 (python, state D in nfs_wait)"."""

    survivors: tuple[str, ...]
    at: float


class NoLeftovers(Struct, frozen=True):
    """No process is left that the workers have started."""

    at: float


class LeftoverProcess(Struct, frozen=True):
    """A process that a worker has started, and that still runs when the worker has ended."""

    pid: int
    name: str
    """Of its program: "sh"."""
    rank: int | None
    """Of the worker; None if its environment does not tell."""


class Left(Struct, frozen=True):
    """What the workers have left running: those whose parents have ended, not their children."""

    processes: tuple[LeftoverProcess, ...]
    at: float


class OutputEnded(Struct, frozen=True):
    """All output of the ended worker is written; ``tail`` is the end of its standard error."""

    local_rank: LocalRank
    tail: str
    error_file: str
    """What it wrote to TORCHELASTIC_ERROR_FILE, undecoded JSON; "" if nothing."""
    at: float


class OutputClosed(Struct, frozen=True):
    """The reader of our standard output is gone (``| head``)."""

    at: float


class ForkServerReady(Struct, frozen=True):
    """The fork server is ready, and has something to report about its start."""

    printed: str
    """What its interpreter printed to standard error at its start."""
    refused: tuple[str, ...]
    """Protections that the kernel refuses: "PR_SET_PDEATHSIG (Operation not permitted)"."""
    at: float


class ForkServerPrepared(Struct, frozen=True):
    """Workers can be started from now on."""

    at: float


class HelperLost(Struct, frozen=True):
    """The helper process ``name`` ended without being asked to, or was ended since it did not answer."""

    name: str
    """``fork server`` or ``relay``."""
    how: str
    """"exited with code 1", "was killed by SIGKILL" or "has not answered for 5 s: it is stopped"."""
    signal: int
    """The signal that killed it; 0 if it exited."""
    at: float


class NodeChecked(Struct, frozen=True):
    """``--check`` has ended."""

    fault: str
    """What it has found, in a line; "": nothing."""
    at: float


class WorldJoined(Struct, frozen=True):
    """All nodes have joined, or this node takes a place in a job that runs: as it sees the world."""

    world: World
    at: float


class WaitListed(Struct, frozen=True):
    """The job runs, and this node waits for a place in it."""

    at: float


class CoordinatorSent(Struct, frozen=True):
    """The coordinator has sent ``message``."""

    message: Order
    at: float


class CoordinatorLost(Struct, frozen=True):
    """Node 0 is lost, and the coordinator with it."""

    node: NodeLost
    at: float
    at_once: bool = False
    """Other nodes may go on: the workers get no grace period."""


class WorkersIdle(Struct, frozen=True):
    """No worker of this node has printed, started or ended for ``seconds``; 0: one has done so now."""

    seconds: float
    at: float


class MainThreadsBlocked(Struct, frozen=True):
    """No main thread of this node's workers has run for ``seconds``; 0: one has now."""

    seconds: float
    at: float


class StacksCollected(Struct, frozen=True):
    """The Python stacks of this node's workers, by their numbers in the job."""

    groups: tuple[StackGroup, ...]
    at: float


class QueryReceived(Struct, frozen=True):
    """The coordinator has sent a message about a query."""

    message: QueryMessage
    at: float


class LastLine(Struct, frozen=True):
    """What a worker has printed last."""

    text: str
    quiet_for: float
    """Seconds."""
    lines: int
    """Whole lines that it has printed."""


class WorkerStacks(Struct, frozen=True):
    """The Python stacks of all workers, by local rank."""

    groups: tuple[StackGroup, ...]
    on_screen: bool
    """They have appeared there already, as the workers printed them."""


Seen = Mapping[LocalRank, LastLine] | WorkerStacks
"""What a relay has of its workers, for one question each; of those that have printed something."""


class RelayAnswered(Struct, frozen=True):
    """The relay's answer to the question with this number."""

    number: int
    seen: Seen
    at: float


QueryEvent = QueryReceived | RelayAnswered
"""Belongs to no attempt, and never reaches one."""

Event = (
    ChildEnded
    | WorkerStarted
    | WorkerEnded
    | WorkerFailing
    | WorkerReady
    | WorkerNotReady
    | WorkerStopped
    | SignalReceived
    | SuspensionRequested
    | StopRequested
    | RankEvent
    | SignalNotHandled
    | DeadlinePassed
    | CleanedUp
    | NoLeftovers
    | Left
    | OutputEnded
    | OutputClosed
    | ForkServerPrepared
    | ForkServerReady
    | HelperLost
    | NodeChecked
    | WorldJoined
    | WaitListed
    | CoordinatorSent
    | CoordinatorLost
    | WorkersIdle
    | MainThreadsBlocked
    | StacksCollected
    | QueryEvent
)
