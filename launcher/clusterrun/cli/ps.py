"""``clusterrun ps``: this user's jobs on this host."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.cli.printing import columns, print_json, print_text
from clusterrun.cli.run_selection import NO_JOB, describe_silent, found_jobs
from clusterrun.job.options import Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.network.requests import Description
from clusterrun.report.ranks import ps_text
from clusterrun.user_sockets import unusable_socket_folders


class _Silent(Struct, frozen=True):
    """An agent that does not answer."""

    pid: int
    why: str


class _Processes(Struct, frozen=True):
    """What ``clusterrun ps --json`` prints."""

    agents: tuple[Description, ...]
    silent: tuple[_Silent, ...]


def execute(line: CommandLine, environ: Mapping[str, str], _called: str) -> int:
    """Print a line for each agent, including those that do not answer."""
    found = found_jobs(environ)
    agents = tuple(job.described for job in found.jobs)
    silent = tuple(_Silent(each.pid, describe_silent(each)) for each in found.silent)
    if line.read(Launcher).json:
        return print_json(_Processes(agents, silent))
    if not agents and not silent:
        return print_text("\n".join(filter(None, (NO_JOB, unusable_socket_folders(environ)))))
    table = [ps_text(agents, columns(environ))] if agents else []
    return print_text("\n".join([*table, *(f"no answer: {agent.why}" for agent in silent)]))
