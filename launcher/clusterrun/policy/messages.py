"""The messages between members and the coordinator.

Clocks need not agree. A message carries durations, times by the sender's clock that come back to the
sender, and times by node 0's clock; a node knows its offset to node 0's clock from the heartbeats.
The types bound each value (``clusterrun.bounds``); decoding refuses any other value.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from clusterrun.bounds import (
    MAX_WORKERS,
    Count,
    Line,
    Name,
    Page,
    Port,
    ProcessId,
    RunId,
    Seconds,
    Text,
)
from clusterrun.planning.plan import World
from clusterrun.policy.outcome import (
    MAX_RANKS,
    ExternalCause,
    Ranks,
    Reason,
    ReasonToRestart,
    RestartProgress,
    WorkerResult,
)
from clusterrun.policy.queries import Answer, EndOfAnswers, Query

ARGUMENTS = "arguments"
"""The name in ``Hello.should`` whose value is a digest.

Arguments may contain secrets, and any program at node 0's address receives a ``Hello``.
"""

MAX_KEPT_ATTEMPTS = 10_000
"""Attempts of a run whose logs an earlier job may have left."""

MAX_STEP_COUNT = (1 << 62) - 1

StepCount = Annotated[int, Meta(ge=0, le=MAX_STEP_COUNT)]
"""1 + a step, as ranks and agents write it into their shared page; 0: none."""

SUSPEND_COMMAND = "clusterrun suspend"
"""What a request is attributed to if a person made it. As a later request it ends the wait for late ranks.

A scheduler's later request does not: it signals every agent, and not at one moment.
"""


class ProgramOffer(Struct, frozen=True):
    """A program that this node runs in a job with services, and the ports reserved for it."""

    name: Name
    ports: tuple[Port, ...]
    """One for each worker."""
    master_port: Port


class Hello(Struct, frozen=True, tag=True):
    """An agent asks to join."""

    identity: Name
    """Random for each agent: it tells an agent that it has connected to itself."""
    run_id: RunId
    """"": node 0's is used."""
    user_id: Annotated[int, Meta(ge=0, lt=1 << 32)]
    host: Name
    pid: ProcessId
    """The agent's."""
    rank: Count | None
    """The node rank; None: any that is free."""
    workers: Annotated[int, Meta(ge=0, le=MAX_WORKERS)]
    """The number of workers of the main program."""
    must: dict[Name, Line]
    """Values that must be the same on all nodes, by name."""
    should: dict[Name, Line]
    """Values that should be the same on all nodes, by name; a digest for the script's arguments."""
    waited: Seconds = 0.0
    """Seconds since the agent first tried to connect to node 0."""
    role: Name = "default"
    """The workers' role; each role also has its own ranks."""
    kept_attempts: Annotated[int, Meta(ge=0, le=MAX_KEPT_ATTEMPTS)] = 0
    """How many attempts of this run an earlier job has left logs of."""
    programs: tuple[ProgramOffer, ...] = ()
    """() in a job without services."""
    interfaces: tuple[tuple[Name, ...], ...] = ()
    """The addresses of each network interface; () in a job without services."""
    fault: Line = ""
    """What ``--check`` found; "": nothing."""
    at: Seconds = 0.0
    """When it was sent, by the sender's clock; it is answered as the first heartbeat."""


class FirstFailure(Struct, frozen=True, tag=True):
    """The first worker of this node failed; more may follow in ``Done``."""

    attempt: Count
    result: WorkerResult
    at: Seconds | None
    """When, by node 0's clock; None: this node does not know its clock offset yet."""


class EndedExternally(Struct, frozen=True, tag=True):
    """Something other than a worker ends the job on this node."""

    attempt: Count
    external_cause: ExternalCause
    at_once: bool = False
    """All nodes kill their workers without a grace period."""


class DatedResult(Struct, frozen=True):
    """How a worker failed or ended; ``at`` as in ``FirstFailure``."""

    result: WorkerResult
    at: Seconds | None


class RanksSucceeded(Struct, frozen=True, tag=True):
    """All workers of this node have exited with 0; their left-over processes may still run.

    ``Done`` follows unless the verdict comes first.
    """

    attempt: Count


class DatedExit(Struct, frozen=True):
    """A worker that has exited with 0, by its number in the job; ``at`` as in ``FirstFailure``."""

    number: Count
    at: Seconds | None


class RanksExited(Struct, frozen=True, tag=True):
    """These workers of this node have exited with 0, but others have not.

    Once all have, ``RanksSucceeded`` or ``Done`` is sent instead.
    """

    attempt: Count
    exits: Annotated[tuple[DatedExit, ...], Meta(max_length=MAX_RANKS)]


class Done(Struct, frozen=True, tag=True):
    """All workers of this node have ended."""

    attempt: Count
    results: tuple[DatedResult, ...]
    """The workers that may be the cause; one worker if the launcher had stopped all that failed."""
    external_cause: ExternalCause | None
    """What ended the workers, if no worker did."""
    lease_expired: bool = False
    """The workers were killed because their lease expired: this node was stopped or cut off."""


class Heartbeat(Struct, frozen=True, tag=True):
    """The sender is alive; the coordinator answers each heartbeat."""

    at: Seconds
    """When it was sent, by the sender's clock."""


class Idle(Struct, frozen=True, tag=True):
    """How long no worker of this node has printed or exited, and no main thread has run."""

    attempt: Count
    seconds: Seconds
    """Since a worker last printed or exited; 0: one has since the last message."""
    still: Seconds = 0.0
    """Since a main thread last ran; 0: one has since the last message."""


class RankCallsSuspend(Struct, frozen=True, tag=True):
    """A rank of this node has called ``suspend.requested`` for the first time."""

    attempt: Count


class HoldReport(Struct, frozen=True, tag=True):
    """The answer to ``HoldRanks``: the highest step count (1 + step) of this node's ranks; 0: none."""

    attempt: Count
    step_count: StepCount


class SaveReport(Struct, frozen=True, tag=True):
    """The answer to ``SaveAt``; sent again when more ranks have saved or called."""

    attempt: Count
    step_count: StepCount
    """The highest at which a rank of this node has saved."""
    unsaved: Ranks
    """Ranks that have called ``suspend.requested`` but have not saved."""
    silent: Ranks
    """Ranks that have never called it."""


class RankExitedEarly(Struct, frozen=True, tag=True):
    """A rank of this node has exited with 0 before all had saved, which cancels the suspension."""

    attempt: Count
    rank: Count


class WorkersReady(Struct, frozen=True, tag=True):
    """These service workers, by their numbers in the job, are ready."""

    attempt: Count
    numbers: Ranks


class WorkerStartsAgain(Struct, frozen=True, tag=True):
    """A service worker that was ready has failed; it alone is restarted."""

    attempt: Count
    number: Count


class ProgramEnded(Struct, frozen=True, tag=True):
    """All workers of a program on this node have exited with 0."""

    attempt: Count
    name: Name


ServiceMessage = WorkersReady | WorkerStartsAgain | ProgramEnded

SuspensionMessage = RankCallsSuspend | HoldReport | SaveReport | RankExitedEarly

AttemptMessage = (
    FirstFailure
    | EndedExternally
    | RanksExited
    | RanksSucceeded
    | Done
    | Idle
    | ServiceMessage
    | SuspensionMessage
)
"""Messages that belong to one attempt."""


class Paused(Struct, frozen=True, tag=True):
    """The sender's user pauses it, so it will be silent, or continues it.

    The coordinator sends this for node 0's agent.
    """

    paused: bool


class CheckResult(Struct, frozen=True, tag=True):
    """The answer to ``CheckNode``: what ``--check`` found; "": nothing."""

    fault: Line


class RequestSuspension(Struct, frozen=True, tag=True):
    """The job is to be suspended, in this attempt or else in the next one."""

    by: Line
    """What requested it, for messages."""


class RequestStacks(Struct, frozen=True, tag=True):
    """This node got SIGQUIT: node 0 is to print the stacks of all ranks."""


JobMessage = Paused | CheckResult | RequestSuspension | RequestStacks | Query | Answer
"""Messages that belong to no attempt."""

AgentMessage = AttemptMessage | JobMessage
"""Messages of an agent whose workers run."""

FromMember = Hello | AgentMessage | Heartbeat


class Refusal(Enum):
    """Why an agent may not join, which decides what it does next."""

    TRY_NEXT_PORT = "elsewhere"
    """This is another job; the agent's own job may listen on the next port."""

    GIVE_UP = "give up"
    """This is the agent's job, but the agent cannot join it."""

    CHECK_FAILED = "check failed"
    """This is the agent's job, but its machine, or that of another node, failed the check."""

    SELF_CONNECTION = "you"
    """The agent has connected to itself."""


class Refused(Struct, frozen=True, tag=True):
    """The agent may not join: ``text`` is the reason, ``hint`` is what to run instead."""

    refusal: Refusal
    text: Line
    hint: Text


class Notice(Struct, frozen=True, tag=True):
    """A line to print on this node, such as which nodes are missing."""

    text: Line


class WorldFormed(Struct, frozen=True, tag=True):
    """The node's first world: all nodes have joined, or it replaces a lost node."""

    world: World
    host: Name
    """Node 0's."""


class HeartbeatAnswer(Struct, frozen=True, tag=True):
    """Node 0 has received a heartbeat, which renews this node's lease (``policy/leases.py``)."""

    to: Seconds
    """``at`` of the heartbeat, by the member's clock."""
    at: Seconds
    """When it was received, by node 0's clock."""


class KeepWaiting(Struct, frozen=True, tag=True):
    """The job runs without this node, which waits for ``WorldFormed`` or the ``Verdict``."""

    host: Name
    """Node 0's."""


class Stop(Struct, frozen=True, tag=True):
    """The attempt ends: the agent stops its workers."""

    attempt: Count
    why: Line
    """To print on the node."""
    external_cause: ExternalCause | None = None
    """What ends the whole job, if no worker does."""
    at_once: bool = False
    """Without a grace period."""
    lets_saved_ranks_exit: bool = False
    """Ranks that have saved are not signalled."""


class ServicesReady(Struct, frozen=True, tag=True):
    """These services are ready; programs that wait for them start."""

    attempt: Count
    names: tuple[Name, ...]


class EndServices(Struct, frozen=True, tag=True):
    """The main program and all must-finish services have exited with 0; other services stop."""

    attempt: Count


class Verdict(Struct, frozen=True, tag=True):
    """The job has ended: all agents report this reason."""

    reason: Reason
    no_restart: Line
    """Why no restart follows although one would be allowed; "": none would be."""


class GivenUp(Struct, frozen=True, tag=True):
    """The job continues without this node, which kills its workers and may then join again."""

    why: Line
    """The predicate of a sentence: "has been silent for 18 s"."""


class NextAttempt(Struct, frozen=True, tag=True):
    """All workers have ended and restart: the node's new world, and why the last attempt ended."""

    world: World
    reason: ReasonToRestart
    progress: RestartProgress = RestartProgress()


class CheckNode(Struct, frozen=True, tag=True):
    """Run ``--check`` before the next attempt: a worker of this node failed first."""


class SuspensionPossible(Struct, frozen=True, tag=True):
    """A rank of the job has called ``suspend.requested``: from now on SIGTERM requests a suspension."""


class HoldRanks(Struct, frozen=True, tag=True):
    """Hold each rank at its next call, and report the highest step count."""

    attempt: Count


class SaveAt(Struct, frozen=True, tag=True):
    """Release the ranks; each saves at its first call with this step count or a higher one."""

    attempt: Count
    step_count: StepCount


class CancelSuspension(Struct, frozen=True, tag=True):
    """Release the ranks as if no suspension had been requested."""

    attempt: Count


class PrintStacks(Struct, frozen=True, tag=True):
    """Print the stacks of all ranks, on node 0."""

    text: Page


QueryMessage = Query | Answer | EndOfAnswers | PrintStacks
"""Messages about queries; they do not change the job."""

SuspensionOrder = SuspensionPossible | HoldRanks | SaveAt | CancelSuspension

Order = (
    Stop
    | Verdict
    | GivenUp
    | NextAttempt
    | CheckNode
    | ServicesReady
    | EndServices
    | SuspensionOrder
)
"""Messages to an agent whose workers run."""

FromCoordinator = (
    Order | QueryMessage | Refused | Notice | WorldFormed | KeepWaiting | Paused | HeartbeatAnswer
)
