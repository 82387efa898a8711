"""``clusterrun stacks [RUN]``: the stacks of all ranks, without ending or stopping any.

They are Python's, or with ``--native`` those of py-spy, with native frames and locals.
"""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.chosen_run import answer_of, chosen_run
from clusterrun.cli.printing import print_json, print_text
from clusterrun.errors import MachineError, UsageError
from clusterrun.job import values
from clusterrun.job.declaring import Option
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import RunningJob
from clusterrun.planning.plan import named_workers
from clusterrun.policy.looks import (
    JobLook,
    LookAtNativeStacks,
    LookAtStacks,
    MissingNode,
    NativeStack,
    NodeNativeStacks,
    NodeStacks,
)
from clusterrun.policy.messages import Ask
from clusterrun.policy.stacks import StackGroup, describe, grouped, who_differs

SECONDS_FOR_ALL = 40.0
"""More than an agent gives py-spy."""

SECONDS_BETWEEN_LOOKS = 0.5

MAY_NOT_TRACE = (
    "py-spy needs the right to trace processes: see /proc/sys/kernel/yama/ptrace_scope, or,"
    " in a container, the capability SYS_PTRACE"
)

LINES_OF_REASONS = 20
"""At most, where no rank can be shown."""


class _Stacks(Struct, frozen=True):
    """What ``clusterrun stacks --json`` prints."""

    run_id: str
    summary: str
    """Who differs; "" if all ranks are at one place."""
    groups: tuple[StackGroup, ...]
    missing: tuple[MissingNode, ...]


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


class Stacks(Struct, frozen=True):
    """Its own options."""

    rank: Annotated[values.Rank, Option("Of this rank alone", metavar="N", default="all ranks")] = (
        None
    )
    native: Annotated[bool, Option("With py-spy: also native frames and locals")] = False


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print the stacks, equal ones once, and name the nodes that do not answer.

    Raises:
        NoJobError: no run has an agent on this host, or it does not answer.
        UsageError: the line names no run that is there, or a rank that it has not.
        MachineError: py-spy can show no rank: it is missing, or may not look into the processes.

    """
    asked, as_json = line.read(Stacks), line.read(Launcher).json
    rank = asked.rank
    job = chosen_run(line, environ, f"{called} stacks")
    known = job.described
    if rank is not None and rank >= known.ranks:
        raise UsageError(
            f"--rank: run {known.run_id} has no rank {rank}",
            f"it has {known.ranks}: give one from 0 to {known.ranks - 1}",
        )
    if asked.native:
        return _native_stacks(job, rank, as_json=as_json)
    seen = answer_of(job, Ask(1, LookAtStacks(rank)), JobLook)
    groups = grouped(group for node in seen.of(NodeStacks) for group in node.groups)
    named = partial(named_workers, known.programs or ())
    missing = () if rank is not None and groups else seen.missing
    if as_json:
        return print_json(
            _Stacks(job.described.run_id, who_differs(groups, named), groups, missing)
        )
    nodes = [f"node {node.node_rank} ({node.host}) {node.why}" for node in missing]
    stacks = [describe(groups, named=named)] if groups or not missing else []
    return print_text("\n".join([*stacks, *nodes]))


# With --native.


def _native_stacks(job: RunningJob, rank: int | None, *, as_json: bool) -> int:
    """Print what py-spy prints of each rank, and name the nodes that show none."""
    nodes, missing = _collected(job, rank)
    stacks = [(node.host, stack) for node in nodes for stack in node.stacks]
    if rank is not None and stacks:
        missing = ()
    programs = job.described.programs or ()
    texts = [
        f"{named_workers(programs, [stack.rank])} ({host}):\n{stack.text}" for host, stack in stacks
    ]
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
