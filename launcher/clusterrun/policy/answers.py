"""The bodies of answers to queries, decoded by the command or coordinator that asked."""

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
"""Ranks that one node's answer has, so that it fits into one message."""


class RankState(Struct, frozen=True):
    """The state of one rank, from its agent."""

    rank: Count
    local_rank: Count
    state: Name
    """"running", "stopped" (frozen by a signal), "starting", "exited with code 1", ..."""
    pid: ProcessId
    running_for: Seconds
    """Since its program started; 0: it has not."""
    cpu_seconds: Seconds
    """CPU time of all threads of its process, without child processes."""
    memory: Bytes
    """Resident memory."""
    gpus: Name
    """"0,1", as numbered on this machine; "": none assigned."""
    cpus: Line
    """"0-7"; "": it is not bound."""
    last_line: Line
    """The start of the last line printed; "" if it has printed nothing or prints to the terminal itself."""
    quiet_for: Seconds | None
    """Since it last printed; None if ``last_line`` is not known."""
    lines: Bytes = 0
    """Complete lines printed in this attempt."""
    gpu_states: tuple[GpuState, ...] = ()
    """Of its GPUs whose state is known."""


class NodeRanks(Struct, frozen=True):
    """The state of a node and of its ranks."""

    pid: ProcessId
    """The agent's."""
    attempt: Count
    state: Name
    """"running", "stopping", ...: see ``clusterrun.policy.node.Phase``."""
    ranks: tuple[RankState, ...]


class NodeStacks(Struct, frozen=True):
    """The stacks of a node's ranks, by their numbers in the job."""

    groups: tuple[StackGroup, ...]
    on_screen: bool = False
    """The workers themselves have already printed them on the terminal."""
    records: Line = ""
    """A sentence about the files that torch's flight recorder has written; "": none."""


BodyT = TypeVar("BodyT", NodeRanks, NodeStacks, NodeSamples, NcclState)


def decode_answer(answer: Answer, kind: type[BodyT]) -> BodyT | str:
    """Return the body of an answer, or why there is none."""
    if answer.problem:
        return answer.problem
    try:
        return msgspec.msgpack.decode(answer.body, type=kind)
    except msgspec.MsgspecError as error:
        return f"sent an unexpected answer: {error}"


def decode_answers(
    answers: Answers, kind: type[BodyT]
) -> tuple[tuple[tuple[Answer, BodyT], ...], tuple[MissingNode, ...]]:
    """Return the decoded answers, and the nodes without one, by node rank."""
    found = []
    missing = [*answers.end.missing]
    for answer in answers.answers:
        body = decode_answer(answer, kind)
        if isinstance(body, str):
            missing.append(MissingNode(answer.node_rank, answer.host, body))
        else:
            found.append((answer, body))
    return tuple(found), tuple(sorted(missing, key=lambda node: node.node_rank))
