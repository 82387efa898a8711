"""``clusterrun doctor``: whether machines are fit for a training job, and what to do if not.

The nodes of a job are checked by a job: the same nodes, with one small worker each (nodes.py).
"""

import re
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from clusterrun.cli.printing import print_json, print_text, warn
from clusterrun.clients.doctor.this_machine import Finding, Health, check_this_machine
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.declaring import Option, rows_of
from clusterrun.job.options import Files, Joining, Launcher, Meeting, Reaching, Workers
from clusterrun.job.sources import CommandLine, Layer, typed
from clusterrun.report.tables import aligned

if TYPE_CHECKING:
    from clusterrun.clients.doctor.nodes import NodeResult

FAULTY = 1
"""The exit code if something fails: doctor itself has not."""

WORKER = "clusterrun.clients.doctor.nodes"

SECONDS_TO_JOIN = "120"
"""Unless --rdzv-timeout is given: a person may type the command on one node after the other."""

TOKEN_BYTES = 32

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


class Doctor(Struct, frozen=True):
    """Its own options."""

    this_machine: Annotated[
        bool, Option("Check this machine alone, though the job has other nodes")
    ] = False


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print what was found, and below the table what to do; return 1 if a usual job would fail.

    Where the options, a job file or a cluster describe a job of several nodes, all of them are
    checked, and node 0 prints the table.

    Raises:
        UsageError: what they describe is impossible.

    """
    as_json, log_dir = line.read(Launcher).json, line.read(Files).log_dir or ""
    if not line.read(Doctor).this_machine:
        code = _check_job(line, environ, called, as_json=as_json)
        if code is not None:
            return code
    health = Health(host=socket.gethostname(), findings=tuple(check_this_machine(log_dir, environ)))
    _show(health, as_json=as_json)
    return FAULTY if health.has_failed else ExitCode.SUCCESS


def _check_job(
    line: CommandLine, environ: Mapping[str, str], called: str, *, as_json: bool
) -> int | None:
    """Check all nodes of a job, and return the exit code; None if this is its only node."""
    # Most of the launcher: a check of this machine alone needs none of it.
    from clusterrun.clients.doctor.nodes import TOKEN_VARIABLE
    from clusterrun.clients.launches import CLUSTERRUN, ChildLaunches
    from clusterrun.job.resolve import resolve
    from clusterrun.job.this_process import this_process

    log_dir = line.read(Files).log_dir or ""
    job = checking_job(line, log_dir, by_ssh=False)
    try:
        resolved = resolve(job, environ, this_process(called))
    except UsageError as error:
        raise UsageError(error.message, as_typed(error.hint, line)) from None
    by_ssh = resolved.over_ssh is not None
    if not by_ssh and resolved.job.agents == 1:
        warn(resolved.warnings)
        return None
    job = checking_job(line, log_dir or resolved.job.files.log_dir or "", by_ssh=by_ssh)
    # Over ssh this is the only command: it may make one up, which reaches all hosts unseen.
    token = resolved.job.token or (secrets.token_hex(TOKEN_BYTES) if by_ssh else "")
    with ChildLaunches({**environ, TOKEN_VARIABLE: token}) as launches:
        code, printed = launches.run([*CLUSTERRUN, *job.argv()])
    if launches.interrupted:
        return launches.interrupted
    answer = _answer_in(printed)
    if answer is None:
        # The job has printed its own errors.
        return code
    if answer.health is not None:
        _show(answer.health, as_json=as_json)
    return FAULTY if answer.has_failed else code


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


def _answer_in(printed: bytes) -> "NodeResult | None":
    """Return what this node's worker has printed; None if it did not come to that."""
    from msgspec import json

    from clusterrun.clients.doctor.nodes import NodeResult

    for line in reversed(printed.splitlines()):
        # By ssh, a prefix with rank and host is before it.
        start = line.find(b'{"has_failed"')
        if start >= 0:
            return json.decode(line[start:], type=NodeResult)
    return None


def _show(health: Health, *, as_json: bool) -> None:
    if as_json:
        print_json(health)
    else:
        print_text(_table(health.findings))


def _table(findings: Sequence[Finding]) -> str:
    rows = [(each.level.value, each.what, each.found) for each in findings]
    bad = [each for each in findings if each.advice]
    advice = [f"{each.level.value}: {each.what}: {each.advice}" for each in bad]
    return "\n".join([*aligned(rows), *([""] if advice else []), *dict.fromkeys(advice)])
