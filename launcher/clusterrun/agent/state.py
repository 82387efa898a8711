"""What the policy knows of one attempt."""

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct, field
from msgspec.structs import replace

from clusterrun.domain.events import SignalReceived
from clusterrun.domain.outcome import (
    Ending,
    ExternalCause,
    HelperFailed,
    NodeLost,
    Reason,
)
from clusterrun.domain.ranks import LocalRank


class Phase(Enum):
    """The life of an attempt; it only moves downwards in this list."""

    RUNNING = "running"
    """Workers start and run; nothing has gone wrong."""

    STOPPING = "stopping"
    """The workers have been asked to end and have their grace."""

    KILLING = "killing"
    """The workers have been sent SIGKILL."""

    CLEANING_UP = "sweeping"
    """No worker is left; what they left behind is being killed."""

    COLLECTING = "collecting"
    """No process is left; the last of the output is on its way."""

    WAITING = "waiting"
    """This node is done; the others are not, or have not said so."""

    OVER = "over"
    """Nothing more will happen."""


class Running(Struct, frozen=True):
    """A worker that has executed its program."""

    pid: int
    since: float


class Ended(Struct, frozen=True):
    """A worker that is no more."""

    pid: int
    since: float
    at: float
    failed_at: float
    """When its exception left the script, where that is known; else as ``at``."""
    ending: Ending
    stopped_by_us: bool
    """We had signalled it, or the whole job, before it ended, and before it failed."""


class Output(Struct, frozen=True):
    """What an ended worker left in words."""

    tail: str
    error_file: str


class Rules(Struct, frozen=True):
    """How the workers of this node are ended."""

    grace: float
    """Seconds from the polite signal to SIGKILL."""
    foreground: bool
    """The one worker has the terminal, and Ctrl-C reaches it without us."""


class State(Struct, frozen=True):
    """One attempt, from the request to start its workers to its end."""

    rules: Rules
    attempt: int
    nodes: int
    """Nodes of the world, this one included."""
    signal_group: bool
    """The polite signal goes to each worker's whole group: it is no Python program."""
    starting: frozenset[LocalRank]
    phase: Phase = Phase.RUNNING
    running: Mapping[LocalRank, Running] = field(default_factory=dict)
    ended: Mapping[LocalRank, Ended] = field(default_factory=dict)
    """In the order in which they ended."""
    outputs: Mapping[LocalRank, Output] = field(default_factory=dict)
    external_cause: ExternalCause | None = None
    """What ended the job from outside its workers; None where nothing has."""
    external_cause_at: float = 0.0
    signals: Mapping[int, SignalReceived] = field(default_factory=dict)
    """By number, those that end nothing and have come by one of two ways: the other may follow."""
    stopped_at: float = float("inf")
    """When it was no longer left alone: its workers were asked to end, or had all ended."""
    external_cause_elsewhere: ExternalCause | None = None
    """What ended the job from outside on another node, by the order to stop."""
    node_zero_lost: NodeLost | None = None
    """Why the job ends, if its only cause is that the coordinator is lost."""
    without_coordinator: bool = False
    """The coordinator is gone: no verdict will come."""
    survivors: tuple[str, ...] = ()
    lost_helper: HelperFailed | None = None
    """The process of ours that no other attempt can do without; None: all are there."""
    verdict: Reason | None = None
    """What all nodes report; None where the coordinator's answer never came."""
    no_restart: str = ""
    """Why no other attempt follows though there may be more; "" if there is no more to say."""

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
        """Whether a worker ended otherwise than with exit code 0."""
        return any(not ended.ending.succeeded for ended in self.ended.values())


def with_ended(
    state: State, local_rank: LocalRank, ending: Ending, at: float, since_failure: float = 0.0
) -> State:
    """Return ``state`` after the end of one worker, which failed so many seconds before ``at``."""
    before = state.running.get(local_rank, Running(pid=0, since=at))
    failed_at = max(before.since, at - since_failure)
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
