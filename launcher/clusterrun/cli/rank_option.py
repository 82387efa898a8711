"""The options ``--rank`` and ``--node`` of commands about a running job."""

from clusterrun.control.running_jobs import RunningJob
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.rows.looking import RANK, SHOWN_NODE
from clusterrun.sources.settings import CommandLine


def rank_of(line: CommandLine) -> int | None:
    """Return the rank that is asked for; None: all.

    Raises:
        UsageError: the value is no rank.

    """
    return _number(line, RANK)


def node_of(line: CommandLine) -> int | None:
    """Return the node rank that is asked for; None: all.

    Raises:
        UsageError: the value is no node rank.

    """
    return _number(line, SHOWN_NODE)


def check_rank(job: RunningJob, rank: int | None) -> None:
    """Check that the job has the rank.

    Raises:
        UsageError: it has not.

    """
    _check(job, RANK, "rank", rank, job.described.ranks)


def check_node(job: RunningJob, node: int | None) -> None:
    """Check that the job has the node.

    Raises:
        UsageError: it has not.

    """
    _check(job, SHOWN_NODE, "node", node, job.described.nodes)


def _check(
    job: RunningJob, option: Option[int | None], what: str, number: int | None, count: int
) -> None:
    if number is not None and number >= count:
        raise UsageError(
            f"{option.flag}: run {job.described.run_id} has no {what} {number}",
            f"it has {count}: give one from 0 to {count - 1}",
        )


def _number(line: CommandLine, option: Option[int | None]) -> int | None:
    value = line.flags.get(option.name)
    return None if value is None else option.read(Fact(str(value), option.flag)).value
