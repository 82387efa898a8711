"""``clusterrun slow [RUN]``: which rank the others wait for, and why. No rank is paused."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.printing import print_json, print_text
from clusterrun.cli.run_selection import query_agent, select_run
from clusterrun.errors import UsageError
from clusterrun.job import values
from clusterrun.job.declarations import Option
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.control_client import RunningJob
from clusterrun.policy.answers import decode_answers
from clusterrun.policy.queries import SECONDS, Answers, MissingNode, Query, Topic
from clusterrun.policy.samples import WINDOWS, NodeSamples
from clusterrun.policy.slow import SampledRank, judge, rank_to_ask_again
from clusterrun.report.slow import SlowReport, slow_text

MIN_SECONDS = 2 * WINDOWS
"""py-spy samples for whole seconds, and one second gives too few samples."""

MAX_SECONDS = 100
"""A query may take at most 120 s."""

SECONDS_FOR_LOADERS = 3.0
"""For sampling the child processes of one rank, such as DataLoader workers."""


class Slow(Struct, frozen=True):
    """Options of ``clusterrun slow``."""

    seconds: Annotated[values.Seconds, Option("Sample for this long", metavar="SECONDS")] = 10.0


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print which rank is slow and what each rank does, and list the nodes that do not answer.

    Raises:
        NoJobError: no run has an agent on this host, or the agent does not answer.
        UsageError: the run does not exist, or --seconds is out of range.

    """
    asked, as_json = line.read(Slow), line.read(Launcher).json
    if not MIN_SECONDS <= asked.seconds <= MAX_SECONDS:
        raise UsageError(
            f"--seconds: {asked.seconds:g} s is out of range",
            f"give {MIN_SECONDS} to {MAX_SECONDS} s",
        )
    job = select_run(line, environ, f"{called} slow")
    programs = job.described.programs or ()
    ranks, missing = _sampled(job, asked.seconds)
    verdicts = judge(ranks, programs)
    if (rank := rank_to_ask_again(verdicts)) is not None:
        again, _ = _sampled(job, SECONDS_FOR_LOADERS, rank)
        verdicts = judge(ranks, programs, again)
    report = SlowReport.of(job.described.run_id, programs, ranks, verdicts, missing)
    if as_json:
        return print_json(report)
    return print_text(slow_text(programs, ranks, report))


def _sampled(
    job: RunningJob, length: float, rank: int | None = None
) -> tuple[list[SampledRank], tuple[MissingNode, ...]]:
    """Return the samples of all ranks in order; or of one rank, including its child processes."""
    seconds = SECONDS[Topic.SAMPLES] + length
    query = Query(1, Topic.SAMPLES, seconds, rank, length=length, children=rank is not None)
    found, missing = decode_answers(query_agent(job, query, Answers), NodeSamples)
    ranks = [
        SampledRank(answer.node_rank, answer.host, node, own)
        for answer, node in found
        for own in node.ranks
    ]
    return sorted(ranks, key=lambda each: each.own.rank), missing
