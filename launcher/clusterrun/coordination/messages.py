"""The messages between members and the coordinator.

A message carries ages, never times: no two clocks need to agree. The types bound each value
(``clusterrun.domain.bounds``); a message with any other value is refused when it is decoded.
"""

from enum import Enum
from typing import Annotated

from msgspec import Meta, Struct

from clusterrun.domain.bounds import (
    Count,
    Line,
    Name,
    ProcessId,
    RunId,
    Seconds,
    Text,
)
from clusterrun.domain.outcome import (
    ExternalCause,
    Fate,
    Reason,
)
from clusterrun.domain.stacks import StackGroup
from clusterrun.domain.world import World

ARGUMENTS = "arguments"
"""The name in ``Hello.should`` whose value is a digest.

Arguments may hold secrets, and whoever answers at node 0's address hears a ``Hello``.
"""


class Hello(Struct, frozen=True, tag=True):
    """A member introduces itself."""

    identity: Name
    """Random, one for each agent: tells an agent that has reached itself."""
    run_id: RunId
    """"" where none was given: then node 0's holds."""
    user_id: Annotated[int, Meta(ge=0, lt=1 << 32)]
    host: Name
    pid: ProcessId
    rank: Count | None
    """None: any that is free."""
    workers: Annotated[int, Meta(ge=1, le=1 << 20)]
    must: dict[Name, Line]
    """What all nodes must say alike, by name."""
    should: dict[Name, Line]
    """What they had better say alike."""
    waited: Seconds = 0.0
    """Seconds since it began to call node 0."""
    role: Name = "default"
    """Of its workers: ranks are counted within a role, too."""


class Failing(Struct, frozen=True, tag=True):
    """The first worker of this node failed, ``age`` seconds ago; more may follow in ``Done``."""

    attempt: Count
    fate: Fate
    age: Seconds


class EndedExternally(Struct, frozen=True, tag=True):
    """Something other than a worker ends the job on this node."""

    attempt: Count
    external_cause: ExternalCause


class AgedFate(Struct, frozen=True):
    """A worker that ended ``age`` seconds ago."""

    fate: Fate
    age: Seconds


class Done(Struct, frozen=True, tag=True):
    """No worker of this node is left; ``external_cause`` is what ended them, if no worker did."""

    attempt: Count
    fates: tuple[AgedFate, ...]
    external_cause: ExternalCause | None


class Alive(Struct, frozen=True, tag=True):
    """Nothing to say, and here all the same; node 0 answers each with one of its own."""


class AskStacks(Struct, frozen=True, tag=True):
    """A user of this node wants to know where all ranks of all nodes are."""

    attempt: Count


class Stacks(Struct, frozen=True, tag=True):
    """The answer to a ``GiveStacks``, by global rank."""

    attempt: Count
    number: Count
    groups: tuple[StackGroup, ...]


class Still(Struct, frozen=True, tag=True):
    """No worker of this node has printed or ended for so many seconds; 0: one has again."""

    attempt: Count
    seconds: Seconds


AboutStacks = AskStacks | Stacks | Still


class Suspension(Struct, frozen=True, tag=True):
    """This agent is about to be stopped by its user, and is silent on purpose; or goes on again.

    From the coordinator: node 0's agent.
    """

    suspended: bool


FromMember = Hello | Failing | EndedExternally | Done | Alive | AboutStacks | Suspension


class Refusal(Enum):
    """What a refused member is to do about it."""

    TRY_ELSEWHERE = "elsewhere"
    """This is not your job: it may meet at the next place."""

    GIVE_UP = "give up"
    """This is your job, and it can't go on."""

    IT_IS_YOU = "you"
    """You have reached yourself."""


class Refused(Struct, frozen=True, tag=True):
    """You can't come in: ``text`` says why, ``hint`` what to type."""

    refusal: Refusal
    text: Line
    hint: Text


class Notice(Struct, frozen=True, tag=True):
    """A line to print on this node."""

    text: Line


class WorldFormed(Struct, frozen=True, tag=True):
    """All are there: your place, and the host of node 0."""

    world: World
    host: Name


class Stop(Struct, frozen=True, tag=True):
    """The attempt ends: stop your workers."""

    attempt: Count
    why: Line
    external_cause: ExternalCause | None = None
    """What ends the whole job, if it came from outside its workers."""


class Verdict(Struct, frozen=True, tag=True):
    """All nodes are done: the one reason that all of them report."""

    reason: Reason
    no_restart: Line
    """As in ``Outcome``."""


class Again(Struct, frozen=True, tag=True):
    """All nodes are done, and begin anew: your place, and why the last attempt ended."""

    world: World
    reason: Reason


class GiveStacks(Struct, frozen=True, tag=True):
    """Tell the stacks of your workers."""

    attempt: Count
    number: Count
    still_for: Seconds
    """Nothing has moved anywhere for so many seconds; 0: a user wants to know."""
    host: Name
    """Where that user asked; "" on node 0."""


class StacksOfAll(Struct, frozen=True, tag=True):
    """For node 0: the stacks of all ranks, and the nodes that did not tell theirs."""

    groups: tuple[StackGroup, ...]
    missing: tuple[Line, ...]


FromCoordinator = (
    Refused
    | Notice
    | WorldFormed
    | Stop
    | Verdict
    | Again
    | Alive
    | GiveStacks
    | StacksOfAll
    | Suspension
)
