"""The events that the policy of a node handles.

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
    warning: str
    """Why its binding differs from the plan; "": it does not."""
    at: float


class WorkerEnded(Struct, frozen=True):
    """The worker's process has ended, perhaps before its program ran."""

    local_rank: LocalRank
    exit_status: ExitStatus
    at: float
    since_failure: float = 0.0
    """Seconds since its exception left the script; 0.0: not known.

    Exit handlers may take long, and peers may fail meanwhile because this worker is gone.
    """
    by_lease: bool = False
    """Its fork server has killed it, or has not started it, because the lease had expired."""


class WorkerFailing(Struct, frozen=True):
    """The worker's script failed ``since_failure`` seconds ago, but its process still runs."""

    local_rank: LocalRank
    at: float
    since_failure: float


class WorkerReady(Struct, frozen=True):
    """A service worker has become ready."""

    local_rank: LocalRank
    at: float


class WorkerNotReady(Struct, frozen=True):
    """A service worker has not become ready in time."""

    local_rank: LocalRank
    why: str
    """Why the last probe failed."""
    at: float


class WorkerStopped(Struct, frozen=True):
    """A worker was stopped by a signal: the foreground worker by Ctrl-Z, others by a debugger."""

    at: float


class SuspensionRequested(Struct, frozen=True):
    """All ranks of the job are to save at the same step and exit, however that was requested."""

    by: str
    """What requested it, for messages: "SIGUSR1" or "--suspend-before 300"."""
    at: float


class StopRequested(Struct, frozen=True):
    """The job is to end, and not to be suspended: a user ran a command, or the caller has exited."""

    by: str
    """The command or event, for messages."""
    at_once: bool
    """Without a grace period."""
    at: float


class RankCalledSuspend(Struct, frozen=True):
    """The rank has called ``suspend.requested`` for the first time."""

    local_rank: LocalRank
    at: float


class RanksHeld(Struct, frozen=True):
    """All ranks that call ``suspend.requested`` are held, and have been long enough for ``step_count`` to be final."""

    step_count: int
    """The highest step count (1 + step) of this node's ranks."""
    at: float


class RankSaved(Struct, frozen=True):
    """The rank has called ``suspend.ready``, after saving at ``step_count``."""

    local_rank: LocalRank
    step_count: int
    at: float


RankEvent = RankCalledSuspend | RanksHeld | RankSaved


class SignalNotHandled(Struct, frozen=True):
    """Signal ``number`` was not forwarded to these workers, which have no handler for it."""

    number: int
    local_ranks: tuple[LocalRank, ...]
    at: float


class DeadlinePassed(Struct, frozen=True):
    """The deadline of the last ``SetDeadline`` has passed."""

    at: float


class CleanedUp(Struct, frozen=True):
    """The left-over processes of the attempt were killed."""

    survivors: tuple[str, ...]
    """Processes that SIGKILL did not end: "pid 12 (python, state D in nfs_wait)"."""
    at: float


class NoLeftovers(Struct, frozen=True):
    """No left-over process runs any more."""

    at: float


class LeftoverProcess(Struct, frozen=True):
    """A process that a worker started, and that still runs after the worker has ended."""

    pid: int
    name: str
    """The name of its program: "sh"."""
    rank: int | None
    """The worker's; None if the process's environment does not have it."""


class LeftoversNamed(Struct, frozen=True):
    """The left-over processes whose parents have ended, without their children."""

    processes: tuple[LeftoverProcess, ...]
    at: float


class OutputEnded(Struct, frozen=True):
    """All output of the ended worker has been written."""

    local_rank: LocalRank
    tail: str
    """The end of its standard error."""
    error_file: str
    """The content of TORCHELASTIC_ERROR_FILE, undecoded JSON; "": it wrote nothing."""
    at: float


class OutputClosed(Struct, frozen=True):
    """The reader of the launcher's standard output has exited (``| head``)."""

    at: float


class ForkServerReady(Struct, frozen=True):
    """The fork server has started, and has something to report about its start."""

    printed: str
    """What its interpreter printed to standard error."""
    refused: tuple[str, ...]
    """What containment lacks: "the kernel refuses PR_SET_PDEATHSIG (Operation not permitted)"."""
    at: float


class ForkServerPrepared(Struct, frozen=True):
    """The fork server can start workers from now on."""

    at: float


class HelperLost(Struct, frozen=True):
    """A helper process ended unexpectedly, or was killed because it did not respond."""

    name: str
    """"fork server" or "relay"."""
    how: str
    """"exited with code 1", "was killed by SIGKILL" or "has not answered for 5 s: it is stopped"."""
    signal: int
    """The signal that killed it; 0: it exited."""
    at: float


class NodeChecked(Struct, frozen=True):
    """``--check`` has finished."""

    fault: str
    """What it found, as one line; "": nothing."""
    at: float


class WorldJoined(Struct, frozen=True):
    """This node participates in an attempt, either the first one or one of a running job."""

    world: World
    at: float


class WaitListed(Struct, frozen=True):
    """The job runs without this node, which waits for a rank."""

    at: float


class CoordinatorSent(Struct, frozen=True):
    """The coordinator has sent a message."""

    message: Order
    at: float


class CoordinatorLost(Struct, frozen=True):
    """Node 0, which runs the coordinator, is lost."""

    node: NodeLost
    at: float
    at_once: bool = False
    """Other nodes may continue the job, so the workers get no grace period."""


class WorkersIdle(Struct, frozen=True):
    """No worker of this node has printed, started or ended for ``seconds``; 0: one just has."""

    seconds: float
    at: float


class MainThreadsBlocked(Struct, frozen=True):
    """No main thread of this node's workers has run for ``seconds``; 0: one just has."""

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
    """The last line that a worker has printed."""

    text: str
    quiet_for: float
    """Seconds since it last printed."""
    lines: int
    """Complete lines that it has printed."""


class WorkerStacks(Struct, frozen=True):
    """The Python stacks of all workers, by local rank."""

    groups: tuple[StackGroup, ...]
    on_screen: bool
    """The workers themselves have already printed them on the terminal."""


RelayAnswer = Mapping[LocalRank, LastLine] | WorkerStacks
"""The relay's answers to its two requests: the last lines of workers that have printed, or stacks."""


class RelayAnswered(Struct, frozen=True):
    """The relay has answered the request with this number."""

    number: int
    seen: RelayAnswer
    at: float


QueryEvent = QueryReceived | RelayAnswered
"""Events that the agent handles outside of any attempt."""

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
    | LeftoversNamed
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
