"""The messages between members and the coordinator.

No two clocks need to agree: a message carries durations, times for their sender, to which they come back,
and times of node 0's clock, whose difference from a node's own the heartbeats show. The types bound each value (``clusterrun.bounds``); a message with any other value is refused when it is decoded.
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

Arguments may hold secrets, and any program at node 0's address receives a ``Hello``.
"""

MAX_KEPT_ATTEMPTS = 10_000
"""Those of a run whose logs are found again."""

MAX_STEP_COUNT = (1 << 62) - 1

Mark = Annotated[int, Meta(ge=0, le=MAX_STEP_COUNT)]
"""1 + a step, as ranks and agents write it into the page that they share; 0: none."""

SUSPEND_COMMAND = "clusterrun suspend"
"""A request that a person types. Typed again, it goes on without ranks that others wait for.

A scheduler's does not: it sends its signal to every agent, and not at one moment.
"""


class ProgramOffer(Struct, frozen=True):
    """A program of a job with services that this node has, and the ports that are its own."""

    name: Name
    ports: tuple[Port, ...]
    """One for each of its workers."""
    master_port: Port


class Hello(Struct, frozen=True, tag=True):
    """An agent asks to join."""

    identity: Name
    """Random, one for each agent: an agent that has connected to itself notices it."""
    run_id: RunId
    """Or "": then node 0's is used."""
    user_id: Annotated[int, Meta(ge=0, lt=1 << 32)]
    host: Name
    pid: ProcessId
    """The agent's."""
    rank: Count | None
    """The node rank; None: any that is free."""
    workers: Annotated[int, Meta(ge=0, le=MAX_WORKERS)]
    """Of the main program."""
    must: dict[Name, Line]
    """Values that must be the same on all nodes, by name."""
    should: dict[Name, Line]
    """Values that should be the same: of the script's arguments, a digest."""
    waited: Seconds = 0.0
    """Seconds since it began to call node 0."""
    role: Name = "default"
    """Of its workers: ranks are counted within a role, too."""
    kept_attempts: Annotated[int, Meta(ge=0, le=MAX_KEPT_ATTEMPTS)] = 0
    """Attempts of this run whose logs an earlier job has left."""
    programs: tuple[ProgramOffer, ...] = ()
    """Of a job with services."""
    interfaces: tuple[tuple[Name, ...], ...] = ()
    """The addresses of each network interface, in such a job: others reach it by one of them."""
    fault: Line = ""
    """Why it may not work: what ``--check`` has found; "": nothing."""
    at: Seconds = 0.0
    """When it was sent, by the sender's clock: it is answered as the first heartbeat."""


class FirstFailure(Struct, frozen=True, tag=True):
    """The first worker of this node failed; more may follow in ``Done``."""

    attempt: Count
    result: WorkerResult
    at: Seconds | None
    """When, by node 0's clock; None: this node does not know it yet."""


class EndedExternally(Struct, frozen=True, tag=True):
    """Something other than a worker ends the job on this node."""

    attempt: Count
    external_cause: ExternalCause
    at_once: bool = False
    """All nodes kill their workers, without a grace period."""


class DatedResult(Struct, frozen=True):
    """A worker that failed or ended; ``at`` as in ``FirstFailure``."""

    result: WorkerResult
    at: Seconds | None


class RanksSucceeded(Struct, frozen=True, tag=True):
    """All workers of this node have exited with 0; what they have left may still run.

    ``Done`` follows, unless the verdict comes before.
    """

    attempt: Count


class DatedExit(Struct, frozen=True):
    """A worker that has exited with 0, by its number in the job; ``at`` as in ``FirstFailure``."""

    number: Count
    at: Seconds | None


class RanksExited(Struct, frozen=True, tag=True):
    """These workers of this node have exited with 0, and others have not.

    If all have, ``RanksSucceeded`` or ``Done`` says so.
    """

    attempt: Count
    exits: Annotated[tuple[DatedExit, ...], Meta(max_length=MAX_RANKS)]


class Done(Struct, frozen=True, tag=True):
    """No worker of this node is left; ``external_cause`` is what ended them, if no worker did."""

    attempt: Count
    results: tuple[DatedResult, ...]
    """Of workers that may be the cause; of one, if all that failed had been stopped."""
    external_cause: ExternalCause | None
    lease_expired: bool = False
    """The workers were ended because their lease was over: this node was stopped, or cut off."""


class Heartbeat(Struct, frozen=True, tag=True):
    """The sender is alive; the coordinator answers each heartbeat."""

    at: Seconds
    """When it was sent, by the sender's clock."""


class Idle(Struct, frozen=True, tag=True):
    """No worker of this node prints or exits, or no main thread runs; or one does again."""

    attempt: Count
    seconds: Seconds
    """Since a worker last printed or exited; 0: one has done so since the last message."""
    still: Seconds = 0.0
    """Since a main thread last ran; 0: one has run since the last message."""


class RankCallsSuspend(Struct, frozen=True, tag=True):
    """A rank of this node has called ``suspend.requested`` for the first time."""

    attempt: Count


class Held(Struct, frozen=True, tag=True):
    """The answer to a ``HoldRanks``: the highest mark (1 + step) of this node's ranks; 0: none."""

    attempt: Count
    mark: Mark


class Saves(Struct, frozen=True, tag=True):
    """The answer to a ``SaveAt``, and again when more ranks have saved or have called."""

    attempt: Count
    mark: Mark
    """The highest at which a rank of this node has saved."""
    unsaved: Ranks
    """Those that have called ``suspend.requested`` and have not saved."""
    silent: Ranks
    """Those that have never called it."""


class RankExitedEarly(Struct, frozen=True, tag=True):
    """A rank of this node has ended with 0 before all had saved: no suspension any more."""

    attempt: Count
    rank: Count


class WorkersReady(Struct, frozen=True, tag=True):
    """These workers of services are ready, by their numbers in the job."""

    attempt: Count
    numbers: Ranks


class WorkerStartsAgain(Struct, frozen=True, tag=True):
    """A worker of a service that was ready has failed, and starts again alone."""

    attempt: Count
    number: Count


class ProgramEnded(Struct, frozen=True, tag=True):
    """All workers that a program has on this node have ended with 0."""

    attempt: Count
    name: Name


ServiceMessage = WorkersReady | WorkerStartsAgain | ProgramEnded

SuspensionMessage = RankCallsSuspend | Held | Saves | RankExitedEarly

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
    """This agent is about to be paused by its user, and is silent on purpose; or continues.

    From the coordinator: node 0's agent is.
    """

    paused: bool


class Checked(Struct, frozen=True, tag=True):
    """The answer to a ``CheckNode``: what ``--check`` has found; "": nothing."""

    fault: Line


class RequestSuspension(Struct, frozen=True, tag=True):
    """A suspension is wanted, in this attempt or else in the next one; ``by`` whom."""

    by: Line


class RequestStacks(Struct, frozen=True, tag=True):
    """A user wants node 0 to print the stacks of all ranks, by SIGQUIT on this node."""


JobMessage = Paused | Checked | RequestSuspension | RequestStacks | Query | Answer
"""Messages that belong to no attempt."""

AgentMessage = AttemptMessage | JobMessage
"""Messages of an agent whose workers run."""

FromMember = Hello | AgentMessage | Heartbeat


class Refusal(Enum):
    """What a refused member is to do about it."""

    TRY_NEXT_PORT = "elsewhere"
    """This is another job; its own may meet at the next port."""

    GIVE_UP = "give up"
    """This is its job, and it cannot join."""

    CHECK_FAILED = "check failed"
    """This is its job, and its machine, or that of another node, may not work in it."""

    SELF_CONNECTION = "you"
    """The agent has connected to itself."""


class Refused(Struct, frozen=True, tag=True):
    """The agent may not join: ``text`` is the reason, ``hint`` what to type."""

    refusal: Refusal
    text: Line
    hint: Text


class Notice(Struct, frozen=True, tag=True):
    """A line to print on this node, such as the nodes that are missing."""

    text: Line


class WorldFormed(Struct, frozen=True, tag=True):
    """All nodes have joined, or the node takes a lost one's place: its part in the world.

    ``host`` is that of node 0.
    """

    world: World
    host: Name


class HeartbeatAnswer(Struct, frozen=True, tag=True):
    """Node 0 has received a heartbeat: this node's workers may run on (``policy/leases.py``)."""

    to: Seconds
    """``at`` of the heartbeat, by the member's clock."""
    at: Seconds
    """When it was received, by node 0's clock."""


class KeepWaiting(Struct, frozen=True, tag=True):
    """No place is free for this node: it waits, for a ``WorldFormed`` or the ``Verdict``.

    ``host`` is that of node 0.
    """

    host: Name


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
    """Ranks that have saved end by themselves."""


class ServicesReady(Struct, frozen=True, tag=True):
    """These services are ready: what has waited for them starts."""

    attempt: Count
    names: tuple[Name, ...]


class EndServices(Struct, frozen=True, tag=True):
    """The main program has ended with 0 on all nodes, and what must finish: services are stopped."""

    attempt: Count


class Verdict(Struct, frozen=True, tag=True):
    """The job has ended: all agents report this reason."""

    reason: Reason
    no_restart: Line
    """Why no restart follows although one would be allowed; "" otherwise."""


class GivenUp(Struct, frozen=True, tag=True):
    """The job goes on without this node: it ends its workers, and may join again as one that waits."""

    why: Line
    """It "has been silent for 18 s"."""


class NextAttempt(Struct, frozen=True, tag=True):
    """All nodes are done and restart: the node's new world, and why the last attempt ended."""

    world: World
    reason: ReasonToRestart
    progress: RestartProgress = RestartProgress()


class CheckNode(Struct, frozen=True, tag=True):
    """A worker of this node has failed first: it runs ``--check`` before the next attempt."""


class SuspensionPossible(Struct, frozen=True, tag=True):
    """A rank of the job has called ``suspend.requested``: SIGTERM is a request from now on."""


class HoldRanks(Struct, frozen=True, tag=True):
    """Hold each rank at its next call, and report the highest mark."""

    attempt: Count


class SaveAt(Struct, frozen=True, tag=True):
    """Let the ranks go on; they save at the first call with this mark or a higher one."""

    attempt: Count
    mark: Mark


class CancelSuspension(Struct, frozen=True, tag=True):
    """Let the ranks go on as if no suspension had been wanted."""

    attempt: Count


class PrintStacks(Struct, frozen=True, tag=True):
    """To node 0's agent: print the stacks of all ranks, as described."""

    text: Page


QueryMessage = Query | Answer | EndOfAnswers | PrintStacks
"""Messages about queries; they change nothing in the job."""

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
