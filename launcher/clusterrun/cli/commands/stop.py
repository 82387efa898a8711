"""``clusterrun stop --warm``: ends the warm fork servers of this user."""

from collections.abc import Mapping

from clusterrun.cli.printing import print_text
from clusterrun.errors import UsageError
from clusterrun.sources.settings import CommandLine
from clusterrun.workers.warm_fork_server import end_warm_servers


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Tell the servers to end, and print how many there were.

    Raises:
        UsageError: the line does not say what to end.

    """
    if "warm" not in line.flags:
        raise UsageError("clusterrun stop: what is to be ended?", f"type {called} stop --warm")
    count = end_warm_servers(environ)
    return print_text(f"ended {count} warm fork server{'' if count == 1 else 's'}")
