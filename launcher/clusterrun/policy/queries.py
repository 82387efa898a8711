"""Queries about a running job: a command asks its agent, which asks the coordinator, which asks the others.

A query does not change the job. Agents and the coordinator forward answers as they arrive, encoded; the
command or the coordinator that asked decodes them (``policy.answers``). A new query needs a ``Topic``,
its seconds, a type in ``policy.answers`` and a method in ``run/node_answers.py``.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Annotated

from msgspec import Meta, Struct

from clusterrun.bounds import Count, Line, Name

MAX_SECONDS = 120.0
"""The longest time a query may take; a node then drops its unfinished answer."""

MAX_BODY = 3 << 20
"""Bytes of an answer's body; the whole answer must fit into a frame."""

QuerySeconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Body = Annotated[bytes, Meta(max_length=MAX_BODY)]


class Topic(Enum):
    """What a query is about; the value is its name in messages."""

    RANKS = "ranks"
    """The state of each rank; answered by ``NodeRanks``."""
    STACKS = "stacks"
    """The Python stacks, as SIGQUIT prints them; answered by ``NodeStacks``."""
    NATIVE = "native stacks"
    """Native frames and locals, from py-spy; answered by ``NodeStacks``."""
    SAMPLES = "samples"
    """What main threads do during some time; answered by ``NodeSamples``."""
    NCCL = "NCCL"
    """The collectives that the ranks of the program of ``rank`` have launched; answered by ``NcclState``."""


SECONDS: Mapping[Topic, float] = MappingProxyType(
    {Topic.RANKS: 1.2, Topic.STACKS: 1.2, Topic.NATIVE: 30.0, Topic.NCCL: 22.0, Topic.SAMPLES: 10.0}
)
"""How long all nodes together may take; for SAMPLES, in addition to ``length``. A user should wait at
most two seconds for what is available at once. py-spy reads the symbols of all libraries of a process,
which takes seconds for torch's. NCCL is asked twice, and takes 10 s if a process does not respond."""

SECONDS_FOR_REPORTS = 4.0
"""For stacks that node 0 collects unasked: no user waits, and ranks may be busy."""


class Query(Struct, frozen=True, tag=True):
    """A question about the job, to the nodes of the ranks that it is about."""

    number: Count
    """Chosen by the sender, to match the answers."""
    topic: Topic
    seconds: QuerySeconds
    """For all nodes together; later answers are ignored."""
    rank: Count | None = None
    """The only rank it is about, so only its node is asked; None: all."""
    length: QuerySeconds = 0.0
    """SAMPLES: how long to sample, in ``WINDOWS`` consecutive windows."""
    children: bool = False
    """SAMPLES: also sample the ranks' child processes, such as DataLoader workers, in one window."""


class Answer(Struct, frozen=True, tag=True):
    """The answer of one node."""

    number: Count
    """The number of the ``Query``."""
    node_rank: Count
    host: Name
    body: Body = b""
    """In msgpack; b"" if there is a ``problem``."""
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
    """No more answers follow to a ``Query`` of this agent."""

    number: Count
    """The number of the ``Query``."""
    missing: tuple[MissingNode, ...] = ()
    more: Count = 0
    """How many further nodes have not answered."""
    waiting: tuple[Name, ...] = ()
    """The hosts of nodes that wait for a rank."""
    suspension: Line = ""
    """Which ranks have not saved, as a sentence; "": no suspension is in progress."""


class Answers(Struct, frozen=True, tag=True):
    """What a command receives: the answers of all nodes, and their end."""

    answers: tuple[Answer, ...]
    """By node rank."""
    end: EndOfAnswers
