"""Native frames and locals by py-spy, of all ranks: ``clusterrun stacks --native``."""

import secrets
import time

from msgspec import Struct

from clusterrun.cli.chosen_run import answer_of
from clusterrun.cli.printing import print_json, print_text
from clusterrun.errors import MachineError
from clusterrun.network.control_client import RunningJob
from clusterrun.policy.looks import (
    JobLook,
    LookAtNativeStacks,
    MissingNode,
    NativeStack,
    NodeNativeStacks,
)
from clusterrun.policy.messages import Ask

SECONDS_FOR_ALL = 40.0
"""More than an agent gives py-spy."""

SECONDS_BETWEEN_LOOKS = 0.5

MAY_NOT_TRACE = (
    "py-spy needs the right to trace processes: see /proc/sys/kernel/yama/ptrace_scope, or,"
    " in a container, the capability SYS_PTRACE"
)

LINES_OF_REASONS = 20
"""At most, where no rank can be shown."""


class _OfNode(Struct, frozen=True):
    """What one node has answered."""

    node_rank: int
    host: str
    stacks: tuple[NativeStack, ...]


class _NativeStacks(Struct, frozen=True):
    """What ``clusterrun stacks --native --json`` prints."""

    run_id: str
    nodes: tuple[_OfNode, ...]
    missing: tuple[MissingNode, ...]


def native_stacks(job: RunningJob, rank: int | None, *, as_json: bool) -> int:
    """Print what py-spy prints of each rank, and name the nodes that show none.

    Raises:
        UsageError: this node's agent does not answer.
        MachineError: no rank can be shown: py-spy is missing, or may not look into the processes.

    """
    nodes, missing = _collected(job, rank)
    stacks = [(node.host, stack) for node in nodes for stack in node.stacks]
    if rank is not None and stacks:
        missing = ()
    texts = [f"rank {stack.rank} ({host}):\n{stack.text}" for host, stack in stacks]
    names = [f"node {node.node_rank} ({node.host}) {node.why}" for node in missing]
    if not any(stack.found for _, stack in stacks):
        raise MachineError("no rank can be shown", _reasons(texts, names))
    if as_json:
        return print_json(_NativeStacks(job.described.run_id, nodes, missing))
    return print_text("\n".join([*texts, *names]))


def _collected(
    job: RunningJob, rank: int | None
) -> tuple[tuple[_OfNode, ...], tuple[MissingNode, ...]]:
    """Look until all nodes that answer are done, or the time is over."""
    number = secrets.randbits(61)
    done: dict[int, NodeNativeStacks] = {}
    until = time.monotonic() + SECONDS_FOR_ALL
    while True:
        look = LookAtNativeStacks(number, rank, tuple(sorted(done)))
        seen = answer_of(job, Ask(1, look), JobLook)
        answers = seen.of(NodeNativeStacks)
        for node in answers:
            if node.is_done:
                done.setdefault(node.node_rank, node)
        is_late = time.monotonic() >= until
        if is_late or all(node.is_done for node in answers):
            break
        time.sleep(SECONDS_BETWEEN_LOOKS)
    why = f"has no stacks after {SECONDS_FOR_ALL:g} s"
    missing = [each for each in seen.missing if each.node_rank not in done]
    missing += [
        MissingNode(each.node_rank, each.host, each.problem)
        for each in done.values()
        if each.problem
    ]
    missing += [MissingNode(each.node_rank, each.host, why) for each in answers if not each.is_done]
    ordered = sorted(done.values(), key=lambda node: node.node_rank)
    return (
        tuple(_OfNode(each.node_rank, each.host, each.stacks) for each in ordered if each.stacks),
        tuple(sorted(missing, key=lambda node: node.node_rank)),
    )


def _reasons(texts: list[str], names: list[str]) -> str:
    lines = "\n".join([*texts, *names]).splitlines()[:LINES_OF_REASONS] or ["no rank runs now"]
    return "\n".join([*lines, MAY_NOT_TRACE] if texts else lines)
