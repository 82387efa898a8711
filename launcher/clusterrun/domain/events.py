"""Everything that happens while a job runs, as one agent sees it.

``at`` is in seconds of the agent's monotonic clock.
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
    """Why its binding differs from the plan; "" if it does not."""
    at: float


class WorkerNotStarted(Struct, frozen=True):
    """The worker's process ended before its program ran: at which ``step``, with which ``error``."""

    local_rank: LocalRank
    step: str
    error: str
    at: float


class WorkerExited(Struct, frozen=True):
    """The worker exited with exit code ``code``."""

    local_rank: LocalRank
    code: int
    at: float
    since_failure: float = 0.0
    """Seconds since its exception left the script; 0.0 if only the exit time is known.

    Exit handlers may take long, while peers fail because this worker is missing.
    """


class WorkerKilled(Struct, frozen=True):
    """The worker was killed by signal ``number``."""

    local_rank: LocalRank
    number: int
    at: float
    since_failure: float = 0.0
    """As in ``WorkerExited``: the worker was already failing."""
    code: int = 0
    """The exit code with which it was about to exit; 0 if unknown."""


class WorkerStopped(Struct, frozen=True):
    """The foreground worker was stopped from the terminal (Ctrl-Z) by signal ``number``."""

    local_rank: LocalRank
    number: int
    at: float


class SignalReceived(Struct, frozen=True):
    """The agent received signal ``number``."""

    number: int
    at: float
    to_fork_server: bool = False
    """The fork server received it, as the workers' parent, and forwards it to the agent."""


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


class HelperLost(Struct, frozen=True):
    """The helper process ``name`` ended without being asked to."""

    name: str
    """``fork server`` or ``relay``."""
    how: str
    """"exited with code 1" or "was killed by SIGKILL"."""
    signal: int
    """The signal that killed it; 0 if it exited."""
    at: float


class StopOrdered(Struct, frozen=True):
    """The coordinator ends the attempt; ``why`` is the reason, "rank 3 on gpu-07 failed"."""

    why: str
    attempt: int
    at: float
    external_cause: ExternalCause | None = None
    """The external cause that ends the whole job; None if a worker failed."""


class VerdictReached(Struct, frozen=True):
    """All nodes are done, and every node reports ``reason`` as the reason for the end."""

    reason: Reason
    no_restart: str
    """As in ``Outcome``."""
    at: float


class RestartOrdered(Struct, frozen=True):
    """All nodes have stopped and start the next attempt; ``reason`` ended the last one."""

    reason: Reason
    at: float


class CoordinatorLost(Struct, frozen=True):
    """Node 0 on ``host`` is lost; ``how``: "is gone" or "has been silent for 15 s"."""

    host: str
    how: str
    at: float


class WorkersIdle(Struct, frozen=True):
    """No worker of this node has printed, started or ended for ``seconds``."""

    seconds: float
    at: float


class WorkersActive(Struct, frozen=True):
    """After ``WorkersIdle``, a worker has printed, started or ended."""

    at: float


class StacksRequested(Struct, frozen=True):
    """The coordinator asks for the Python stacks of this node's workers, for the n-th time."""

    number: int
    idle_for: float
    """Seconds for which all workers of the job have been idle; 0 if a user has asked."""
    host: str
    """The host where the user has asked; "" on node 0."""
    shown_here: bool
    """This is node 0, which shows the stacks."""
    at: float


class StacksCollected(Struct, frozen=True):
    """The Python stacks of this node's workers, by local rank."""

    number: int
    groups: tuple[StackGroup, ...]
    shown: bool
    """They are already printed."""
    at: float


class StacksGathered(Struct, frozen=True):
    """On node 0: the Python stacks of the workers of all nodes except ``missing``."""

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
