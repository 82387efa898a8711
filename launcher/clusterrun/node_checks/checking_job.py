"""The job that checks the nodes of a job: the same nodes, with one small worker each."""

import re
import shlex
from collections.abc import Mapping

import msgspec

from clusterrun.job.declaring import rows_of
from clusterrun.job.options import Joining, Meeting, Reaching, Workers
from clusterrun.job.sources import CommandLine, Layer, typed
from clusterrun.node_checks.findings import Answer
from clusterrun.workers.child_launch import CLUSTERRUN, ChildLaunches

WORKER = "clusterrun.node_checks.check_worker"

SECONDS_TO_JOIN = "120"
"""Unless --rdzv-timeout is given: a person may type the command on one node after the other."""

_FORCED = typed(
    module="true",
    nproc_per_node="1",
    numa_binding="none",
    start_method="spawn",
    max_restarts="0",
)

_KEPT = {
    *rows_of(Workers, Meeting, Joining, Reaching),
    *("config", "python", "env", "heartbeat_timeout", "verbose"),
}
"""What says where the nodes are, and how their agents meet."""


def checking_job(line: CommandLine, log_dir: str, *, by_ssh: bool) -> CommandLine:
    """Return the command line of the job that checks the nodes of ``line``'s.

    Args:
        line: of the job whose nodes are checked.
        log_dir: where that job has its log files; "" for none.
        by_ssh: this process prints what all agents print, and needs what node 0's worker does.

    """
    kept = line.without(line.options.keys() - _KEPT).over(_added(line, by_ssh=by_ssh))
    return CommandLine(kept.options, (WORKER, log_dir))


def as_typed(hint: str, line: CommandLine) -> str:
    """Return a hint for the checking job as one for ``clusterrun doctor``."""
    added = shlex.join(CommandLine(_added(line, by_ssh=False)).argv())
    plain = hint.replace(f" {added}", "").replace(f" {WORKER} ''", "")
    if plain == hint:
        return hint
    return re.sub(r"(?m)\bclusterrun( |$)", r"clusterrun doctor\1", plain)


def _added(line: CommandLine, *, by_ssh: bool) -> Layer:
    return {
        **({} if "rdzv_timeout" in line.options else typed(rdzv_timeout=SECONDS_TO_JOIN)),
        **_FORCED,
        **(typed(ranks="0") if by_ssh else {}),
        **_nodes_and_spares(line),
    }


def _nodes_and_spares(line: CommandLine) -> Layer:
    """Return how many nodes there are where some are spares: those are checked, too."""
    if "nnodes" not in line.options or "spares" not in line.options:
        return {}
    nodes, spares = (line.options[name][-1].value for name in ("nnodes", "spares"))
    if nodes.isdecimal() and spares.isdecimal():
        return typed(nnodes=str(int(nodes) + int(spares)))
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
