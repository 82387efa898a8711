"""Everything that happens while a job runs, as seen by one agent.

``at`` is the agent's monotonic clock in seconds.
"""

from msgspec import Struct

from clusterrun.domain.outcome import (
    ExternalCause,
    Reason,
)
from clusterrun.domain.ranks import LocalRank
from clusterrun.domain.stacks import StackGroup


class WorkerStarted(Struct, frozen=True):
    """The worker has executed its program."""

    local_rank: LocalRank
    pid: int
    remark: str
    """Why it is bound otherwise than planned; "" if it is as planned."""
    at: float


class WorkerNotStarted(Struct, frozen=True):
    """The worker's process ended before its program ran: ``step`` says where, ``error`` why."""

    local_rank: LocalRank
    step: str
    error: str
    at: float


class WorkerExited(Struct, frozen=True):
    """The worker ended by itself with exit code ``code``."""

    local_rank: LocalRank
    code: int
    at: float
    since_failure: float = 0.0
    """Seconds before that its exception left the script; 0 where nobody but the exit tells.

    Exit handlers may hold the end back for long, while peers fail for want of this worker.
    """


class WorkerKilled(Struct, frozen=True):
    """The worker was ended by signal ``number``."""

    local_rank: LocalRank
    number: int
    at: float
    since_failure: float = 0.0
    """As of ``WorkerExited``: it was ending by itself already."""
    code: int = 0
    """The exit code that it was ending with then; 0 where nothing tells."""


class WorkerStopped(Struct, frozen=True):
    """The foreground worker was stopped from the terminal (Ctrl-Z) by signal ``number``."""

    local_rank: LocalRank
    number: int
    at: float


class SignalReceived(Struct, frozen=True):
    """The agent got signal ``number``."""

    number: int
    at: float
    to_fork_server: bool = False
    """The fork server got it, as the workers' parent, and hands it on."""


class SignalNotHandled(Struct, frozen=True):
    """Signal ``number`` was to be forwarded; ``local_ranks`` have no handler, so it was kept from them."""

    number: int
    local_ranks: tuple[LocalRank, ...]
    at: float


class DeadlinePassed(Struct, frozen=True):
    """The time that the last ``SetDeadline`` gave is over."""

    at: float


class CleanedUp(Struct, frozen=True):
    """Nothing of the attempt is left, but for ``survivors``: "pid 12 (python, state D in nfs_wait)"."""

    survivors: tuple[str, ...]
    at: float


class OutputEnded(Struct, frozen=True):
    """All that the ended worker had printed is written: the ``tail`` of its standard error."""

    local_rank: LocalRank
    tail: str
    error_file: str
    """What it wrote to TORCHELASTIC_ERROR_FILE, undecoded JSON; "" if nothing."""
    at: float


class OutputClosed(Struct, frozen=True):
    """Whoever read our standard output has gone (``| head``)."""

    at: float


class ForkServerReady(Struct, frozen=True):
    """The fork server has begun to serve, and there is something to say of that."""

    printed: str
    """What its interpreter printed to standard error when it started."""
    refused: tuple[str, ...]
    """Protections that the kernel refuses: "PR_SET_PDEATHSIG (Operation not permitted)"."""
    at: float


class HelperLost(Struct, frozen=True):
    """A process of ours, ``name``, ended though nobody asked it to."""

    name: str
    """``fork server`` or ``relay``."""
    how: str
    """"exited with code 1" or "was killed by SIGKILL"."""
    signal: int
    """The signal that ended it; 0 if it exited."""
    at: float


class StopOrdered(Struct, frozen=True):
    """Another node has a reason to end an attempt: ``why`` names it, "rank 3 on gpu-07 failed"."""

    why: str
    attempt: int
    at: float
    external_cause: ExternalCause | None = None
    """What ends the whole job, if it came from outside its workers."""


class VerdictReached(Struct, frozen=True):
    """All nodes are done: this is the reason for the end that every node reports."""

    reason: Reason
    no_restart: str
    """As in ``Outcome``."""
    at: float


class RestartOrdered(Struct, frozen=True):
    """All nodes have stopped, and begin the next attempt; this is why the last one ended."""

    reason: Reason
    at: float


class CoordinatorLost(Struct, frozen=True):
    """Node 0, ``host``, "is gone" or "has been silent for 15 s": ``how``."""

    host: str
    how: str
    at: float


class WorkersIdle(Struct, frozen=True):
    """No worker of this node has printed, started or ended for so many seconds."""

    seconds: float
    at: float


class WorkersActive(Struct, frozen=True):
    """After a ``WorkersIdle`` one has."""

    at: float


class StacksRequested(Struct, frozen=True):
    """The coordinator wants the Python stacks of this node's workers: its n-th such wish."""

    number: int
    still_for: float
    """Nothing has moved on any node for so long; 0: a user wants to know."""
    host: str
    """Where that user asked; "" on node 0."""
    shown_here: bool
    """This is node 0, where they are shown."""
    at: float


class StacksCollected(Struct, frozen=True):
    """The Python stacks of this node's workers, by local rank."""

    number: int
    groups: tuple[StackGroup, ...]
    shown: bool
    """They are on the screen already."""
    at: float


class StacksGathered(Struct, frozen=True):
    """The Python stacks of all workers of all nodes but those ``missing``, on node 0."""

    groups: tuple[StackGroup, ...]
    missing: tuple[str, ...]
    """"node 3 (gpu-07)" of those that did not answer in time."""
    at: float


AboutStacks = WorkersIdle | WorkersActive | StacksRequested | StacksCollected | StacksGathered

Event = (
    WorkerStarted
    | WorkerNotStarted
    | WorkerExited
    | WorkerKilled
    | WorkerStopped
    | SignalReceived
    | SignalNotHandled
    | DeadlinePassed
    | CleanedUp
    | OutputEnded
    | OutputClosed
    | ForkServerReady
    | HelperLost
    | StopOrdered
    | VerdictReached
    | RestartOrdered
    | CoordinatorLost
    | AboutStacks
)
