"""The job that checks the nodes of a job: the same nodes, with one small worker each."""

import re
import shlex
from collections.abc import Mapping

import msgspec

from clusterrun.node_checks.findings import Answer
from clusterrun.sources.options.option import Group, Option
from clusterrun.sources.options.rows import (
    failing,
    joining,
    launcher,
    losing,
    output,
    placing,
    program,
    starting,
    workers,
)
from clusterrun.sources.options.table import BY_GROUP
from clusterrun.sources.settings import CommandLine, FlagValue
from clusterrun.workers.child_launch import CLUSTERRUN, ChildLaunches

WORKER = "clusterrun.node_checks.check_worker"

SECONDS_TO_JOIN = "120"
"""Unless --rdzv-timeout is given: a person may type the command on one node after the other."""

_FORCED: Mapping[Option[object], FlagValue] = {
    program.MODULE: True,
    workers.NPROC_PER_NODE: "1",
    placing.NUMA_BINDING: "none",
    starting.START_METHOD: "spawn",
    failing.MAX_RESTARTS: "0",
}

_KEPT: tuple[Option[object], ...] = (
    *(
        option
        for group in (Group.WORKERS, Group.MEETING, Group.JOINING)
        for option in BY_GROUP[group]
    ),
    *BY_GROUP[Group.REACHING],
    *(launcher.CONFIG, program.PYTHON, program.ENV, failing.HEARTBEAT_TIMEOUT, output.VERBOSE),
)
"""What says where the nodes are, and how their agents meet."""


def checking_job(line: CommandLine, log_dir: str, *, by_ssh: bool) -> CommandLine:
    """Return the command line of the job that checks the nodes of ``line``'s.

    Args:
        line: of the job whose nodes are checked.
        log_dir: where that job has its log files; "" for none.
        by_ssh: this process prints what all agents print, and needs what node 0's worker does.

    """
    kept = {name for option in _KEPT for name in option.names}
    own = {name for option in _FORCED for name in option.names}
    flags = {name: value for name, value in line.flags.items() if name in kept - own}
    return CommandLine({**flags, **_added(line, by_ssh=by_ssh)}, (WORKER, log_dir))


def as_typed(hint: str, line: CommandLine) -> str:
    """Return a hint for the checking job as one for ``clusterrun doctor``."""
    added = shlex.join(CommandLine(_added(line, by_ssh=False), ()).argv())
    plain = hint.replace(f" {added}", "").replace(f" {WORKER} ''", "")
    if plain == hint:
        return hint
    return re.sub(r"(?m)\bclusterrun( |$)", r"clusterrun doctor\1", plain)


def _added(line: CommandLine, *, by_ssh: bool) -> dict[str, FlagValue]:
    timeout = joining.RDZV_TIMEOUT.name
    return {
        **({} if timeout in line.flags else {timeout: SECONDS_TO_JOIN}),
        **{option.name: value for option, value in _FORCED.items()},
        **({output.RANKS.name: "0"} if by_ssh else {}),
        **_nodes_and_spares(line),
    }


def _nodes_and_spares(line: CommandLine) -> dict[str, FlagValue]:
    """Return how many nodes there are where some are spares: those are checked, too."""
    nodes, spares = (str(line.flags.get(row.name, "")) for row in (workers.NNODES, losing.SPARES))
    if nodes.isdecimal() and spares.isdecimal():
        return {workers.NNODES.name: str(int(nodes) + int(spares))}
    return {}


def answer_of(job: CommandLine, environ: Mapping[str, str]) -> tuple[Answer | None, int]:
    """Run the job; return what this node's worker has found, None if it did not come to that.

    The second value is the job's exit code. It prints its own errors.
    """
    with ChildLaunches(environ) as launches:
        code, printed = launches.run([*CLUSTERRUN, *job.argv()])
    if launches.interrupted:
        return None, launches.interrupted
    return _answer_in(printed), code


def _answer_in(out: bytes) -> Answer | None:
    for line in reversed(out.splitlines()):
        # By ssh, a prefix with rank and host is before it.
        start = line.find(b'{"has_failed"')
        if start >= 0:
            return msgspec.json.decode(line[start:], type=Answer)
    return None
