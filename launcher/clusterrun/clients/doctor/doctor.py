"""``clusterrun doctor``: whether machines are fit for a training job, and what to do if not.

The nodes of a job are checked by a job: the same nodes, with one program each (nodes.py).
"""

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from clusterrun.cli.printing import print_json, print_text, warn
from clusterrun.clients.doctor.this_machine import Finding, Health, check_this_machine
from clusterrun.errors import ExitCode, UsageError, shell_line
from clusterrun.job.declarations import Option, Setting, rows_of
from clusterrun.job.options import (
    NAMES,
    OPTIONS,
    Files,
    Join,
    Launcher,
    Rendezvous,
    Ssh,
    Workers,
)
from clusterrun.job.sources import (
    ENV_VARIABLE,
    PREFIX,
    TORCHRUN_PREFIX,
    CommandLine,
    Layer,
    typed,
)
from clusterrun.report.tables import aligned

if TYPE_CHECKING:
    from clusterrun.clients.doctor.node_program import NodeResult

FAULTY = 1
"""The exit code if something fails: doctor itself has not."""

PROGRAM = "clusterrun.clients.doctor.node_program"

SECONDS_TO_JOIN = "120"
"""Unless --rdzv-timeout is given: a person may type the command on one node after the other."""

FIXED_OPTIONS = typed(
    module="true",
    nproc_per_node="1",
    numa_binding="none",
    start_method="spawn",
    max_restarts="0",
)

KEPT = {
    *rows_of(Workers, Rendezvous, Join, Ssh),
    *("python", "heartbeat_timeout", "verbose"),
} - {"check"}
"""What says where the nodes are, and how their agents meet. Nothing else reaches the job that checks:
the command of --check, which may be doctor itself, must not run again there."""


class Doctor(Struct, frozen=True):
    """Its own options."""

    this_machine: Annotated[
        bool, Option("Check this machine alone, though the job has other nodes")
    ] = False
    pilot: Annotated[
        bool,
        Option(
            "Run small test jobs on these GPUs, including failing ones, for ten minutes; print a"
            " report to send back"
        ),
    ] = False


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print what was found, and below the table what to do; return 1 if a usual job would fail.

    Where the options, a job file or a cluster describe a job of several nodes, all of them are
    checked, and node 0 prints the table.

    Raises:
        UsageError: what they describe is impossible.

    """
    as_json, log_dir = line.read(Launcher).json, line.read(Files).log_dir or ""
    own = line.read(Doctor)
    if own.pilot:
        from clusterrun.clients.doctor.pilot import run_pilot

        return run_pilot(line, environ, called)
    if not own.this_machine:
        code = _check_job(line, environ, called, as_json=as_json)
        if code is not None:
            return code
    health = Health(host=socket.gethostname(), findings=tuple(check_this_machine(log_dir, environ)))
    _show([health], as_json=as_json)
    return FAULTY if health.has_failed else ExitCode.SUCCESS


def _check_job(
    line: CommandLine, environ: Mapping[str, str], called: str, *, as_json: bool
) -> int | None:
    """Check all nodes of a job, and return the exit code; None if this is its only node."""
    # Most of the launcher: a check of this machine alone needs none of it.
    from clusterrun.clients.launches import CLUSTERRUN, ChildLaunches
    from clusterrun.job.resolve import resolve
    from clusterrun.job.this_process import this_process

    job, variables = node_check_job(line, environ)
    try:
        resolved = resolve(job, variables, this_process(called))
    except UsageError as error:
        raise UsageError(error.message, as_typed(error.hint, line)) from None
    if resolved.over_ssh is None and resolved.job.agents == 1:
        warn(resolved.warnings)
        return None
    with ChildLaunches(variables) as launches:
        code, printed = launches.run([*CLUSTERRUN, *job.argv()])
    if launches.interrupted:
        return launches.interrupted
    results = list(_results_in(printed))
    # A job that could not begin has printed its own errors.
    _show([each.health for each in results if each.health], as_json=as_json)
    return FAULTY if any(each.has_failed for each in results) else code


def node_check_job(
    line: CommandLine, environ: Mapping[str, str]
) -> tuple[CommandLine, dict[str, str]]:
    """Return the command line and the environment of the job that checks the nodes of ``line``'s."""
    found, variables = options_from_sources(line, environ)
    log_dir = found["log_dir"][-1].value if "log_dir" in found else ""
    return CommandLine(
        {**connection_options(found), **FIXED_OPTIONS}, (PROGRAM, log_dir)
    ), variables


def options_from_sources(
    line: CommandLine, environ: Mapping[str, str]
) -> tuple[Layer, dict[str, str]]:
    """Return the options that flags, variables and a job file set, and the variables without them.

    Texts of ``env`` stay in a variable: other users can read a command line.
    """
    from clusterrun.job.resolve import read_sources

    layers, _, _ = read_sources(line, environ)
    found = {name: texts for name in OPTIONS if (texts := _texts(name, layers))}
    read = {prefix + name.upper() for prefix in (PREFIX, TORCHRUN_PREFIX) for name in NAMES}
    variables = {name: value for name, value in environ.items() if name not in read}
    if "env" in found:
        variables[ENV_VARIABLE] = "\n".join(text.value for text in found["env"])
    return found, variables


def connection_options(found: Layer) -> Layer:
    """Return the options in ``KEPT``, with what both kinds of job need; spares are nodes as others."""
    options = {name: texts for name, texts in found.items() if name in KEPT}
    return {**options, **_added(found)}


def _texts(name: str, layers: Sequence[Layer]) -> tuple[Setting[Any], ...]:
    """Return what the strongest source sets; of a repeated option all, the weakest source first."""
    set_by = [texts for layer in layers if (texts := layer.get(name))]
    if OPTIONS[name].value.repeated:
        return tuple(text for texts in reversed(set_by) for text in texts)
    return set_by[0] if set_by else ()


def as_typed(hint: str, line: CommandLine) -> str:
    """Return a hint for the checking job as one for ``clusterrun doctor``."""
    added = shell_line(CommandLine({**_added(line.options), **FIXED_OPTIONS}).argv())
    plain = re.sub(rf" {re.escape(PROGRAM)} \S+", "", hint.replace(f" {added}", ""))
    if plain == hint:
        return hint
    return re.sub(r"(?m)\bclusterrun( |$)", r"clusterrun doctor\1", plain)


def _added(found: Layer) -> Layer:
    added = {} if "rdzv_timeout" in found else typed(rdzv_timeout=SECONDS_TO_JOIN)
    if "nnodes" in found and "spares" in found:
        nodes, spares = (found[name][-1].value for name in ("nnodes", "spares"))
        if nodes.isdecimal() and spares.isdecimal():
            return {**added, **typed(nnodes=str(int(nodes) + int(spares)))}
    return added


def _results_in(printed: bytes) -> "Iterator[NodeResult]":
    """Yield what the programs of this node, or by ssh those of all nodes, have printed."""
    from msgspec import json

    from clusterrun.clients.doctor.node_program import NodeResult

    for line in printed.splitlines():
        # By ssh, a prefix with rank and host is before it.
        start = line.find(b'{"has_failed"')
        if start >= 0:
            yield json.decode(line[start:], type=NodeResult)


def _show(found: Sequence[Health], *, as_json: bool) -> None:
    """Print the table of all nodes, or of this machine; then those of nodes that are compared with none."""
    for health in sorted(found, key=lambda each: not each.nodes):
        if as_json:
            print_json(health)
            return
        heading = f"\n{health.host} alone:\n" if len(found) > 1 and health.host else ""
        print_text(heading + _table(health.findings))


def _table(findings: Sequence[Finding]) -> str:
    rows = [(each.level.value, each.what, each.found) for each in findings]
    bad = [each for each in findings if each.advice]
    advice = [f"{each.level.value}: {each.what}: {each.advice}" for each in bad]
    return "\n".join([*aligned(rows), *([""] if advice else []), *dict.fromkeys(advice)])
