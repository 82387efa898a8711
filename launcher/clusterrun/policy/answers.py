"""What the answers to queries hold, as it is decoded by who has asked: a command, or the coordinator."""

from typing import TypeVar

import msgspec
from msgspec import Struct

from clusterrun.bounds import Bytes, Count, Line, Name, ProcessId, Seconds
from clusterrun.machine.machine import GpuState
from clusterrun.policy.nccl import NcclState
from clusterrun.policy.queries import Answer, Answers, MissingNode
from clusterrun.policy.samples import NodeSamples
from clusterrun.policy.stacks import StackGroup

MAX_LAST_LINE = 400
"""Characters of a worker's last line."""

MAX_RANKS = 4096
"""Ranks of one node that are shown: their answer fits into one message."""


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
    """The last line that it has printed, at most ``MAX_LAST_LINE`` of it; "" if it has printed
    nothing, or prints to the terminal itself."""
    quiet_for: Seconds | None
    """Since it has printed something; None where ``last_line`` is not known."""
    lines: Bytes = 0
    """Whole lines that it has printed in this attempt."""
    gpu_states: tuple[GpuState, ...] = ()
    """Of its GPUs, as far as they are known."""


class NodeRanks(Struct, frozen=True):
    """The state of a node and of its ranks."""

    pid: ProcessId
    """Of the agent."""
    attempt: Count
    state: Name
    """"running", "stopping", ...: see ``clusterrun.policy.node.Phase``."""
    ranks: tuple[RankState, ...]


class NodeStacks(Struct, frozen=True):
    """The stacks of a node's ranks, by their numbers in the job."""

    groups: tuple[StackGroup, ...]
    on_screen: bool = False
    """They have appeared on the screen already, as the workers printed them."""
    records: Line = ""
    """The files that torch's flight recorder has written, in words; "": none."""


BodyT = TypeVar("BodyT", NodeRanks, NodeStacks, NodeSamples, NcclState)


def decoded(answer: Answer, kind: type[BodyT]) -> BodyT | str:
    """Return what a node has answered; or why there is nothing."""
    if answer.problem:
        return answer.problem
    try:
        return msgspec.msgpack.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        return f"answers something else: {error}"


def read(
    answers: Answers, kind: type[BodyT]
) -> tuple[tuple[tuple[Answer, BodyT], ...], tuple[MissingNode, ...]]:
    """Return the answers of this kind, and the nodes that have given none, by node rank."""
    found = []
    missing = [*answers.end.missing]
    for answer in answers.answers:
        body = decoded(answer, kind)
        if isinstance(body, str):
            missing.append(MissingNode(answer.node_rank, answer.host, body))
        else:
            found.append((answer, body))
    return tuple(found), tuple(sorted(missing, key=lambda node: node.node_rank))
