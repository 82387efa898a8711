"""``clusterrun stacks [RUN]``: the stacks of all ranks, which keep running.

These are Python stacks; with ``--native``, py-spy's stacks with native frames and local variables.
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.printing import print_json, print_text
from clusterrun.cli.run_selection import query_agent, select_run
from clusterrun.errors import ExitCode, MachineError, UsageError
from clusterrun.job import values
from clusterrun.job.declarations import Option
from clusterrun.job.job import MAIN
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import RunningJob
from clusterrun.planning.plan import NumberedProgram, named_workers
from clusterrun.policy.answers import NodeStacks, decode_answers
from clusterrun.policy.nccl import NcclState, in_words
from clusterrun.policy.queries import SECONDS, Answers, MissingNode, Query, Topic
from clusterrun.policy.stacks import StackGroup, describe_differences, group_stacks, stacks_text

MAY_NOT_TRACE = (
    "py-spy needs the right to trace processes: see /proc/sys/kernel/yama/ptrace_scope, or,"
    " in a container, the capability SYS_PTRACE"
)

MAX_REASONS = 20
"""Lines of reasons if the stack of no rank can be shown."""


class _Stacks(Struct, frozen=True):
    """What ``clusterrun stacks --json`` prints."""

    run_id: str
    summary: str
    """Which ranks differ; "" if all ranks are in the same place, and for native stacks."""
    groups: tuple[StackGroup, ...]
    missing: tuple[MissingNode, ...]
    nccl: tuple[str, ...]
    """What NCCL reports about the ranks, as text."""


class Stacks(Struct, frozen=True):
    """Options of ``clusterrun stacks``."""

    rank: Annotated[values.Rank, Option("Of this rank alone", metavar="N", default="all ranks")] = (
        None
    )
    native: Annotated[bool, Option("With py-spy: also native frames and locals")] = False


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print the stacks, equal ones once, and list the nodes that do not answer.

    Raises:
        NoJobError: no run has an agent on this host, or the agent does not answer.
        UsageError: the run or the rank does not exist.
        MachineError: py-spy can't show any rank: it is missing, or may not trace the processes.

    """
    asked, as_json = line.read(Stacks), line.read(Launcher).json
    rank = asked.rank
    job = select_run(line, environ, f"{called} stacks")
    known = job.described
    workers = sum(each.size for each in known.programs or ()) or known.ranks
    if rank is not None and rank >= workers:
        raise UsageError(
            f"--rank: run {known.run_id} has no rank {rank}",
            f"it has {workers}: give one from 0 to {workers - 1}",
        )
    topic = Topic.NATIVE if asked.native else Topic.STACKS
    answers = query_agent(job, Query(1, topic, SECONDS[topic], rank), Answers)
    nodes, missing = decode_answers(answers, NodeStacks)
    found = (group for _, node in nodes for group in node.groups)
    # Native stacks contain process ids, so no two are equal.
    groups = tuple(found) if asked.native else group_stacks(found)
    if asked.native and not any(group.found for group in groups):
        raise MachineError("no rank can be shown", _reasons(groups, missing))
    named = partial(named_workers, known.programs or ())
    shown = {each for group in groups for each in group.ranks}
    asks_nccl = rank is None and not asked.native
    if as_json:
        nccl = _nccl_lines(job, shown) if asks_nccl else ()
        return print_json(
            _Stacks(known.run_id, describe_differences(groups, named), groups, missing, nccl)
        )
    records = [f"{answer.host}: {node.records}" for answer, node in nodes if node.records]
    print_text("\n".join([stacks_text(groups, missing, answers.end.more, named), *records]))
    # NCCL may take long to answer, so the stacks are printed first.
    if asks_nccl and (text := in_words(NcclState(_nccl_lines(job, shown)))):
        print_text(text)
    return ExitCode.SUCCESS


def _nccl_lines(job: RunningJob, shown: Collection[int]) -> tuple[str, ...]:
    """Return what NCCL reports about the ranks of each program; () if none uses it.

    ``shown`` are the ranks whose nodes have just answered. Others are not queried, because waiting for
    them takes time.
    """
    known = job.described
    programs = known.programs or (NumberedProgram(MAIN, 0, known.ranks),)
    return tuple(line for each in programs if each.size > 1 for line in _lines_of(job, each, shown))


def _lines_of(job: RunningJob, program: NumberedProgram, shown: Collection[int]) -> tuple[str, ...]:
    """Query NCCL on the node of the first rank, else of other ranks: all nodes give the same answer."""
    ranks = sorted(set(range(program.first, program.first + program.size)).intersection(shown))
    for rank in sorted({*ranks[:1], *ranks[len(ranks) // 2 :][:1], *ranks[-1:]}):
        query = Query(1, Topic.NCCL, SECONDS[Topic.NCCL], rank)
        found, _ = decode_answers(query_agent(job, query, Answers), NcclState)
        for _, state in found:
            return state.lines
    return ()


def _reasons(groups: tuple[StackGroup, ...], missing: tuple[MissingNode, ...]) -> str:
    """Return why py-spy can't show any rank, and what to do about it."""
    if not groups and not missing:
        return "no rank runs now"
    lines = [*stacks_text(groups, missing).splitlines()[:MAX_REASONS]]
    return "\n".join([*(line.strip() for line in lines), *([MAY_NOT_TRACE] if groups else [])])
