"""What one may see of a running job: each node answers for its own ranks.

A look changes nothing in the job. Its type says what is asked, and ``seconds`` how long all nodes
together may take to answer; later answers count no more. A new look is a type of ``Look``, a type of
``NodeAnswer`` and, in ``run/look.py``, the way from one to the other.
"""

from collections.abc import Mapping
from typing import ClassVar, TypeVar

from msgspec import Struct

from clusterrun.bounds import Bytes, Count, Line, LocalRank, Name, ProcessId, Seconds, Text
from clusterrun.machine.machine import GpuState
from clusterrun.policy.stacks import StackGroup

LONGEST_LAST_LINE = 400
"""Characters of a worker's last line."""

MOST_RANKS = 4096
"""Ranks of one node that are shown: their answer fits into one message."""

SECONDS_FOR_COMMANDS = 1.2
"""A user waits no longer than two seconds for a command."""

SECONDS_ON_NODE_ZERO = 4.0
"""For what node 0 prints by itself; each node gives its workers 2 s."""


class LookAtRanks(Struct, frozen=True, tag=True):
    """Asks for the state of each rank; ``NodeRanks`` answers."""

    seconds: ClassVar[float] = SECONDS_FOR_COMMANDS


class LookAtStacks(Struct, frozen=True, tag=True):
    """Asks for the Python stacks; ``NodeStacks`` answers."""

    rank: Count | None = None
    """Of this rank alone; None: of all."""
    patient: bool = False
    """No command waits: workers have longer to print, and those that have exited are named, too."""

    @property
    def seconds(self) -> float:
        return SECONDS_ON_NODE_ZERO if self.patient else SECONDS_FOR_COMMANDS


class LookAtNativeStacks(Struct, frozen=True, tag=True):
    """Asks for native frames and locals; ``NodeNativeStacks`` answers, and later looks know more."""

    seconds: ClassVar[float] = SECONDS_FOR_COMMANDS

    number: Bytes
    """A random one: looks of one user have the same."""
    rank: Count | None = None
    """Of this rank alone; None: of all."""
    known: tuple[Count, ...] = ()
    """Nodes whose stacks the user has: they answer without them."""


Look = LookAtRanks | LookAtStacks | LookAtNativeStacks


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
    lines: Bytes = 0
    """Whole lines that it has printed in this attempt."""
    gpu_states: tuple[GpuState, ...] = ()
    """Of its GPUs, as far as they are known."""


class NodeRanks(Struct, frozen=True, tag=True):
    """The state of a node and of its ranks."""

    node_rank: Count
    host: Name
    pid: ProcessId
    """Of the agent."""
    attempt: Count
    state: Name
    """"running", "stopping", ...: see ``clusterrun.policy.node.Phase``."""
    ranks: tuple[RankState, ...]


class NodeStacks(Struct, frozen=True, tag=True):
    """The Python stacks of a node's ranks that run, by global rank."""

    node_rank: Count
    host: Name
    groups: tuple[StackGroup, ...]


class NativeStack(Struct, frozen=True):
    """What py-spy prints of a rank."""

    rank: Count
    text: Text
    """The stacks of its threads, or why there are none."""
    found: bool


class NodeNativeStacks(Struct, frozen=True, tag=True):
    """The native stacks of a node's ranks that run."""

    node_rank: Count
    host: Name
    stacks: tuple[NativeStack, ...]
    """None before all are there."""
    is_done: bool
    problem: Line = ""
    """Why none can be shown."""


NodeAnswer = NodeRanks | NodeStacks | NodeNativeStacks


AnswerT = TypeVar("AnswerT", NodeRanks, NodeStacks, NodeNativeStacks)


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
    suspension: Line = ""
    """Which ranks have not saved, in words; "": no suspension is agreed on."""

    def of(self, kind: type[AnswerT]) -> tuple[AnswerT, ...]:
        """Return the answers of this kind: all, from agents of this version."""
        return tuple(node for node in self.nodes if isinstance(node, kind))


class LastLine(Struct, frozen=True):
    """What a worker has printed last."""

    text: str
    quiet_for: float
    """Seconds."""
    lines: int
    """Whole lines that it has printed."""


class WorkerStacks(Struct, frozen=True):
    """The Python stacks of all workers, by local rank."""

    groups: tuple[StackGroup, ...]
    on_screen: bool
    """They have appeared there already, as the workers printed them."""


Seen = Mapping[LocalRank, LastLine] | WorkerStacks
"""What a relay has of its workers, for one look each; of those that have printed something."""
