"""``clusterrun doctor``: whether machines are fit for a training job, and what to do if not."""

import socket
from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Struct

from clusterrun.cli.json_printing import print_json
from clusterrun.cli.printing import print_text, warn
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.declaring import Option
from clusterrun.job.options import Files, Launcher
from clusterrun.job.sources import CommandLine
from clusterrun.machine.health.finding import Finding, Health
from clusterrun.node_checks.findings import JobFinding
from clusterrun.node_checks.this_machine import check_this_machine
from clusterrun.report.tables import aligned

FAULTY = 1
"""The exit code if something fails: doctor itself has not."""


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
    health = Health(socket.gethostname(), tuple(check_this_machine(log_dir, environ)))
    if as_json:
        print_json(health)
    else:
        print_text(_table(health.findings))
    return FAULTY if health.failures else ExitCode.SUCCESS


def _check_job(
    line: CommandLine, environ: Mapping[str, str], called: str, *, as_json: bool
) -> int | None:
    """Check all nodes of a job, and return the exit code; None if this is its only node."""
    # Most of the launcher: a check of this machine alone needs none of it.
    from clusterrun.job.resolve import resolve
    from clusterrun.job.this_process import this_process
    from clusterrun.node_checks.checking_job import answer_of, as_typed, checking_job

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
    answer, code = answer_of(job, environ)
    if answer is None:
        return code
    if answer.health is not None:
        if as_json:
            print_json(answer.health)
        else:
            print_text(_table(answer.health.findings))
    return FAULTY if answer.has_failed else code


def _table(findings: Sequence[Finding] | Sequence[JobFinding]) -> str:
    rows = [(each.level.value, each.what, each.found) for each in findings]
    bad = [each for each in findings if each.advice]
    advice = [f"{each.level.value}: {each.what}: {each.advice}" for each in bad]
    return "\n".join([*aligned(rows), *([""] if advice else []), *dict.fromkeys(advice)])
