"""What ranks of a running job have printed last, and print next: ``clusterrun logs [RUN]``."""

import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from clusterrun.cli.chosen_run import answer_of, check_place, chosen_run
from clusterrun.cli.printing import complain, print_json, print_text
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job import values
from clusterrun.job.declaring import Option
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import AgentGone, NoAnswer, RunningJob, ask
from clusterrun.policy.looks import (
    JobLook,
    LookAtOutput,
    MissingNode,
    NodeOutput,
    OutputPiece,
    OutputRead,
)
from clusterrun.policy.messages import Ask

SECONDS_BETWEEN_LOOKS = 0.3
"""With -f."""

MOST_OF_ALL = 4 << 10
"""Bytes of each rank, if many are shown: a screen or two."""

MOST_OF_FEW = 64 << 10
"""Bytes of one rank, or of the lines that are searched for: all that is kept."""


class Logs(Struct, frozen=True):
    """Options of ``clusterrun logs`` for a running job."""

    follow: Annotated[
        bool, Option("Go on with what is printed next, until the run ends", short="f")
    ] = False
    rank: Annotated[values.Rank, Option("Of this rank alone", metavar="N", default="all ranks")] = (
        None
    )
    node: Annotated[
        values.RankOfNode,
        Option(
            "Of the ranks of this node alone, by its node rank", metavar="N", default="all nodes"
        ),
    ] = None
    grep: Annotated[
        values.Name,
        Option("Only lines that contain TEXT", metavar="TEXT", default="all lines"),
    ] = ""


class _Output(Struct, frozen=True):
    """What ``clusterrun logs --json`` prints."""

    run_id: str
    nodes: tuple[NodeOutput, ...]
    missing: tuple[MissingNode, ...]


def print_output(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print lines of all ranks, or of some; with -f until the run ends.

    Raises:
        NoJobError: no run has an agent on this host, or it does not answer.
        UsageError: the line names no run that is there, or a rank that it has not.

    """
    asked, as_json = line.read(Logs), line.read(Launcher).json
    if as_json and asked.follow:
        raise UsageError("--json prints one object, and --follow does not end", "leave one out")
    rank = asked.rank
    look = LookAtOutput(
        rank=rank,
        text=asked.grep,
        most=MOST_OF_ALL if rank is None and not asked.grep else MOST_OF_FEW,
    )
    job = chosen_run(line, environ, f"{called} logs")
    check_place(job, rank, asked.node)
    request = Ask(1, look, asked.node)
    seen = answer_of(job, request, JobLook)
    if as_json:
        return print_json(_Output(job.described.run_id, seen.of(NodeOutput), seen.missing))
    _show(seen)
    for node in seen.missing if rank is None else ():
        complain(f"clusterrun: node {node.node_rank} ({node.host}) {node.why}")
    return _follow(job, request, look, seen) if asked.follow else ExitCode.SUCCESS


def _follow(job: RunningJob, request: Ask, look: LookAtOutput, seen: JobLook) -> int:
    # Ctrl-C is how a user ends it: no message.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    read = {each.rank: each for each in _read(seen)}
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        try:
            seen = ask(
                job, replace(request, look=replace(look, after=tuple(read.values()))), JobLook
            )
        except AgentGone:
            complain(f"clusterrun: run {job.described.run_id} has ended, or this node's agent")
            return ExitCode.SUCCESS
        except NoAnswer:
            # It is stopped: it may be continued.
            continue
        read |= {each.rank: each for each in _read(seen)}
        _show(seen)


def _read(seen: JobLook) -> Iterator[OutputRead]:
    return (piece.read for node in seen.of(NodeOutput) for piece in node.pieces)


def _show(seen: JobLook) -> None:
    pieces = [piece for node in seen.of(NodeOutput) for piece in node.pieces]
    if lines := list(_lines(sorted(pieces, key=lambda piece: piece.read.rank))):
        print_text("\n".join(lines))


def _lines(pieces: Iterable[OutputPiece]) -> Iterator[str]:
    for piece in pieces:
        prefix = f"[rank {piece.read.rank}]"
        if piece.left_out:
            yield f"{prefix} ... {piece.left_out} bytes are left out"
        yield from (f"{prefix} {line}" for line in piece.text.splitlines())
