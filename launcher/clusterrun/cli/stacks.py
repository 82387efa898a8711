"""``clusterrun stacks [RUN]``: the Python stacks of all ranks, without ending or stopping any."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.chosen_run import answer_of, check_rank, chosen_run
from clusterrun.cli.native_stacks import native_stacks
from clusterrun.cli.printing import print_json, print_text
from clusterrun.job import values
from clusterrun.job.declaring import Option
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.policy.looks import JobLook, LookAtStacks, MissingNode, NodeStacks
from clusterrun.policy.messages import Ask
from clusterrun.policy.stacks import StackGroup, describe, grouped, who_differs


class _Stacks(Struct, frozen=True):
    """What ``clusterrun stacks --json`` prints."""

    run_id: str
    summary: str
    """Who differs; "" if all ranks are at one place."""
    groups: tuple[StackGroup, ...]
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
        UsageError: no such run has an agent on this host, it does not answer, or has no such rank.

    """
    asked, as_json = line.read(Stacks), line.read(Launcher).json
    rank = asked.rank
    job = chosen_run(line, environ, f"{called} stacks")
    check_rank(job, rank)
    if asked.native:
        return native_stacks(job, rank, as_json=as_json)
    seen = answer_of(job, Ask(1, LookAtStacks(rank)), JobLook)
    groups = grouped(group for node in seen.of(NodeStacks) for group in node.groups)
    missing = () if rank is not None and groups else seen.missing
    if as_json:
        return print_json(_Stacks(job.described.run_id, who_differs(groups), groups, missing))
    nodes = [f"node {node.node_rank} ({node.host}) {node.why}" for node in missing]
    return print_text("\n".join([*_text(groups, nodes), *nodes]))


def _text(groups: Sequence[StackGroup], missing: Sequence[str]) -> list[str]:
    return [describe(groups)] if groups or not missing else []
