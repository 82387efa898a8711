"""Queries about a running job: a command asks its agent, that the coordinator, that the other agents.

A query changes nothing in the job. Agents and the coordinator pass answers on as they come, encoded:
only who has asked decodes them, see ``policy.answers``. A new query is a ``Topic``, its seconds, a type
in ``policy.answers`` and a method in ``run/node_answers.py``.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta, Struct

from clusterrun.bounds import Count, Line, Name

MAX_SECONDS = 120.0
"""Of a query: a node keeps what finds out its answer for no longer."""

MAX_BODY = 3 << 20
"""Bytes of an answer: with what is around it, it fits into a frame."""

QuerySeconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Body = Annotated[bytes, Meta(max_length=MAX_BODY)]


class Topic(Enum):
    """What is asked; the value names it."""

    RANKS = "ranks"
    """How each rank is: ``NodeRanks`` answers."""
    STACKS = "stacks"
    """The Python stacks, as SIGQUIT prints them: ``NodeStacks`` answers."""
    NATIVE = "native stacks"
    """Native frames and locals, by py-spy: ``NodeStacks`` answers."""
    SAMPLES = "samples"
    """What main threads do for some time: ``NodeSamples`` answers."""
    NCCL = "NCCL"
    """Which collectives NCCL's ranks have launched, of the program of ``rank``: ``NcclState`` answers."""


SECONDS: Mapping[Topic, float] = MappingProxyType(
    {Topic.RANKS: 1.2, Topic.STACKS: 1.2, Topic.NATIVE: 30.0, Topic.NCCL: 22.0, Topic.SAMPLES: 10.0}
)
"""How long all nodes together may take; for SAMPLES this is added to ``length``. A user waits no longer
than two seconds for what can be found out at once. py-spy reads the symbols of all libraries of a
process, and torch's take seconds; NCCL takes 10 s where a process is silent, and is asked twice."""

SECONDS_FOR_REPORTS = 4.0
"""For the stacks that node 0 prints by itself: no user waits, and ranks may be busy."""


class Query(Struct, frozen=True, tag=True):
    """A question about the job, to the nodes of the ranks that it is about."""

    number: Count
    """The sender's own, for the answers."""
    topic: Topic
    seconds: QuerySeconds
    """For all nodes together; later answers count no more."""
    rank: Count | None = None
    """About this rank alone, to its node; None: about all."""
    length: QuerySeconds = 0.0
    """SAMPLES: how long to sample: in ``WINDOWS`` that follow each other."""
    children: bool = False
    """SAMPLES: the ranks' child processes, too, those of DataLoaders; in one window."""


class Answer(Struct, frozen=True, tag=True):
    """What one node answers."""

    number: Count
    """That of the ``Query``."""
    node_rank: Count
    host: Name
    body: Body = b""
    """In msgpack; b"": there is a ``problem``."""
    problem: Line = ""
    """Why there is no body."""


class MissingNode(Struct, frozen=True):
    """A node that has not answered, or could not be asked."""

    node_rank: Count
    host: Name
    why: Line
    """"does not answer"."""


def missing_nodes(missing: Iterable[MissingNode], more: int = 0) -> list[str]:
    """Return a line for each node that has not answered, and one for ``more`` such nodes."""
    lines = [f"node {each.node_rank} ({each.host}) {each.why}" for each in missing]
    return [*lines, f"{more} more nodes do not answer"] if more else lines


class EndOfAnswers(Struct, frozen=True, tag=True):
    """No other answer follows to a ``Query`` of this agent."""

    number: Count
    """That of the ``Query``."""
    missing: tuple[MissingNode, ...] = ()
    more: Count = 0
    """Other nodes that have not answered: too many to be named."""
    waiting: tuple[Name, ...] = ()
    """The hosts of nodes without a place, which wait."""
    suspension: Line = ""
    """Which ranks have not saved, in words; "": no suspension is agreed on."""


class Answers(Struct, frozen=True, tag=True):
    """What a command gets: the answers of all nodes, and what ended them."""

    answers: tuple[Answer, ...]
    """In the order of the nodes' ranks."""
    end: EndOfAnswers
