"""What a user sees of a running job from outside: each node answers for its own ranks.

A look changes nothing: no policy decides on it.
"""

from typing import Annotated

from msgspec import Meta, Struct

from clusterrun.domain.bounds import Count, Line, Name, ProcessId, Seconds

LONGEST_LAST_LINE = 400
"""Characters of a worker's last line."""

MOST_RANKS = 4096
"""Ranks of one node that are shown: their answer fits into one message."""

Bytes = Annotated[int, Meta(ge=0, lt=1 << 62)]


class LookAtRanks(Struct, frozen=True, tag=True):
    """Asks for the state of each rank; ``NodeRanks`` answers."""


Look = LookAtRanks


class RankState(Struct, frozen=True):
    """One rank, as its agent sees it."""

    rank: Count
    local_rank: Count
    state: Name
    """"running", "stopped" (frozen by a signal), "starting", "exited with code 1", ..."""
    pid: ProcessId
    running_for: Seconds
    """Since its program was started; 0 if it was not."""
    cpu_seconds: Seconds
    """CPU time of its process, all threads, children excluded."""
    memory: Bytes
    """Resident."""
    gpus: Name
    """"0,1", as numbered on this machine; "" for none of its own."""
    cpus: Line
    """"0-7"; "" if it is not bound."""
    last_line: Line
    """The last line that it has printed, at most ``LONGEST_LAST_LINE`` of it; "" if it has printed
    nothing, or prints to the terminal itself."""
    quiet_for: Seconds | None
    """Since it has printed something; None where ``last_line`` is not known."""


class NodeRanks(Struct, frozen=True, tag=True):
    """The state of a node and of its ranks."""

    node_rank: Count
    host: Name
    pid: ProcessId
    """Of the agent."""
    attempt: Count
    state: Name
    """"running", "stopping", ...: see ``clusterrun.agent.attempt_state.Phase``."""
    ranks: tuple[RankState, ...]


NodeAnswer = NodeRanks


class MissingNode(Struct, frozen=True):
    """A node that has not answered, or could not be asked."""

    node_rank: Count
    host: Name
    why: Line
    """"does not answer"."""


class JobLook(Struct, frozen=True, tag=True):
    """What all nodes have answered to a look."""

    nodes: tuple[NodeAnswer, ...]
    """In the order of their ranks."""
    missing: tuple[MissingNode, ...]
    waiting: tuple[Name, ...]
    """The hosts of nodes without a place, which wait."""


class LastLine(Struct, frozen=True):
    """What a worker has printed last, as its relay has it."""

    text: str
    quiet_for: float
    """Seconds."""
