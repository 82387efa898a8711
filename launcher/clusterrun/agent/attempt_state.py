"""What ``decide`` knows of one attempt on this node."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from clusterrun.domain.event_source import NEVER
from clusterrun.domain.events import SignalReceived
from clusterrun.domain.outcome import (
    Ending,
    ExternalCause,
    HelperFailed,
    NodeLost,
    Reason,
    RestartProgress,
)
from clusterrun.domain.ranks import GlobalRank, LocalRank


class Phase(Enum):
    """The life of an attempt: it goes from one member to a later one, never back."""

    RUNNING = "running"
    """Workers start and run; nothing has gone wrong."""

    STOPPING = "stopping"
    """The workers have got SIGTERM; the grace period runs."""

    KILLING = "killing"
    """The workers have got SIGKILL."""

    CLEANING_UP = "sweeping"
    """All workers have exited; what they left behind is being killed."""

    COLLECTING = "collecting"
    """No process is left; the last output is being collected."""

    WAITING = "waiting"
    """This node has reported its end, and waits for the coordinator's answer."""

    OVER = "over"
    """The attempt is over."""


class Running(Struct, frozen=True):
    """A worker that runs its program."""

    pid: int
    since: float


class Ended(Struct, frozen=True):
    """A worker that has exited or was never started."""

    pid: int
    since: float
    at: float
    failed_at: float
    """When its exception left the script; ``at`` if that is not known."""
    ending: Ending
    stopped_by_us: bool
    """The launcher was stopping it before it exited, and before it failed."""


class LateExit(Struct, frozen=True):
    """A worker whose script has failed, and whose process still runs: see ``late_exits``."""

    failed_at: float
    looked_at: float = NEVER
    """When its stack was asked for."""
    was_named: bool = False
    """Its stack has come, and the user knows of it."""
    stack: str = ""
    killed: bool = False
    """Its time is over."""


class Suspending(Struct, frozen=True):
    """How far the suspension of the job is on this node."""

    possible: bool = False
    """A rank of the job has called ``suspend.requested``, in this attempt or an earlier one."""
    asked: frozenset[LocalRank] = frozenset()
    """The ranks of this node that have called it in this attempt."""
    saved: frozenset[LocalRank] = frozenset()
    saved_at: int = 0
    """The highest mark at which a rank of this node has saved; 0: none has."""
    is_on: bool = False
    """The ranks are being held, or save."""
    mark: int = 0
    """The mark at which they save; 0: not agreed on."""
    signalled_at: float = NEVER
    """When the first SIGTERM asked for the suspension at this agent: a second one ends the job."""


class Output(Struct, frozen=True):
    """The output of a worker that has exited, as far as it is kept."""

    tail: str
    error_file: str


class Rules(Struct, frozen=True):
    """How the workers of this node are ended."""

    grace: float
    """The grace period in seconds."""
    foreground: bool
    """The one worker has the terminal, which sends it Ctrl-C directly."""
    suspend_signal: int | None = None
    """Asks for a suspension, as SIGTERM does once a rank has called ``suspend.requested``."""
    ends_late_exits: bool = True
    """A worker that has failed must exit within the grace period; not if someone debugs it."""
    finds_hangs: bool = False
    """``--hang-timeout`` is set."""
    kills_if_cut_off: bool = False
    """Without a grace period: the other nodes may go on without this one, and ranks must not save
    what they have saved."""


class AttemptState(Struct, frozen=True):
    """One attempt, from the request to start its workers to its end."""

    rules: Rules
    attempt: int
    nodes: int
    """Nodes of the world, this one included."""
    first_rank: GlobalRank
    """Of this node's workers."""
    signal_group: bool
    """SIGTERM goes to the process group of each worker, which is no Python program."""
    starting: frozenset[LocalRank]
    phase: Phase = Phase.RUNNING
    suspending: Suspending = Suspending()
    running: Mapping[LocalRank, Running] = field(default_factory=dict)
    ended: Mapping[LocalRank, Ended] = field(default_factory=dict)
    """In the order in which they ended."""
    late_exits: Mapping[LocalRank, LateExit] = field(default_factory=dict)
    """The workers that were known to have failed before they exited."""
    outputs: Mapping[LocalRank, Output] = field(default_factory=dict)
    external_cause: ExternalCause | None = None
    """What ended the job from outside its workers; None where nothing has."""
    external_cause_at: float = 0.0
    signals: Mapping[int, SignalReceived] = field(default_factory=dict)
    """By number, signals that end nothing and were sent to the agent or to the fork server; if to both,
    the other one follows."""
    stopped_at: float = NEVER
    """When the attempt left ``RUNNING``."""
    external_cause_elsewhere: ExternalCause | None = None
    """What ended the job from outside on another node, as the order to stop says."""
    node_zero_lost: NodeLost | None = None
    """Why the job ends, if its only cause is that the coordinator is lost."""
    without_coordinator: bool = False
    """No answer will come: the coordinator is lost, or has lost this node."""
    survivors: tuple[str, ...] = ()
    lost_helper: HelperFailed | None = None
    """The helper process that is lost; no other attempt can start without it."""
    verdict: Reason | None = None
    """What all nodes report; None where the coordinator's answer never came."""
    no_restart: str = ""
    """Why no other attempt follows though there may be more; "" if there is no more to say."""
    progress: RestartProgress | None = None
    """If another attempt follows."""

    @property
    def alive(self) -> frozenset[LocalRank]:
        """The workers that have not ended."""
        return self.starting | self.running.keys()

    @property
    def output_is_complete(self) -> bool:
        """Whether all output of all ended workers has been collected."""
        return self.ended.keys() == self.outputs.keys()

    @property
    def failed(self) -> bool:
        """Whether a worker has failed."""
        return any(not ended.ending.succeeded for ended in self.ended.values())


def with_ended(
    state: AttemptState,
    local_rank: LocalRank,
    ending: Ending,
    at: float,
    since_failure: float = 0.0,
) -> AttemptState:
    """Return ``state`` after a worker exited at ``at``, and failed ``since_failure`` seconds before."""
    before = state.running.get(local_rank, Running(pid=0, since=at))
    failed_at = at - since_failure
    by_us = state.phase is not Phase.RUNNING and (
        since_failure == 0 or failed_at > state.stopped_at
    )
    ended = Ended(before.pid, before.since, at, failed_at, ending, by_us)
    return replace(
        state,
        starting=state.starting - {local_rank},
        running={rank: worker for rank, worker in state.running.items() if rank != local_rank},
        ended={**state.ended, local_rank: ended},
    )
