"""The options ``--rank`` and ``--node`` of commands about a running job."""

from clusterrun.domain.facts import Fact
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


def _number(line: CommandLine, option: Option[int | None]) -> int | None:
    value = line.flags.get(option.name)
    return None if value is None else option.read(Fact(str(value), option.flag)).value
