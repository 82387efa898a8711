"""``clusterrun doctor``: check whether machines can run a training job, and advise if they can't.

The nodes of a job are checked by starting a job on them, with one process per node (node_program.py).
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

EXIT_UNHEALTHY = 1
"""The exit code if a check fails."""

PROGRAM = "clusterrun.clients.doctor.node_program"

SECONDS_TO_JOIN = "120"
"""The default of --rdzv-timeout, for a user who types the command on one node after the other."""

FIXED_OPTIONS = typed(
    module="true",
    nproc_per_node="1",
    numa_binding="none",
    start_method="spawn",
    max_restarts="0",
)

CONNECTION_OPTIONS = {
    *rows_of(Workers, Rendezvous, Join, Ssh),
    *("python", "heartbeat_timeout", "verbose"),
} - {"check"}
"""Options that say where the nodes are and how their agents connect.

The job that checks nodes gets no others. In particular it must not run the command of --check, which
may be doctor itself.
"""


class Doctor(Struct, frozen=True):
    """The options that only ``clusterrun doctor`` has."""

    this_machine: Annotated[
        bool, Option("Check this machine alone, though the job has other nodes")
    ] = False
    pilot: Annotated[
        bool,
        Option(
            "Run small test jobs on these GPUs for ten minutes, some of which fail on purpose;"
            " print a report to send to the developers"
        ),
    ] = False


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print a table of findings with advice below it; return 1 if a typical job would fail.

    If the options, a job file or a cluster describe a job of several nodes, all of them are checked,
    and node 0 prints the table.

    Raises:
        UsageError: the described job is impossible.

    """
    as_json, log_dir = line.read(Launcher).json, line.read(Files).log_dir or ""
    own = line.read(Doctor)
    if own.pilot:
        from clusterrun.clients.doctor.pilot import run_pilot

        return run_pilot(line, environ, called)
    if not own.this_machine:
        code = _check_nodes(line, environ, called, as_json=as_json)
        if code is not None:
            return code
    health = Health(host=socket.gethostname(), findings=tuple(check_this_machine(log_dir, environ)))
    _print_tables([health], as_json=as_json)
    return EXIT_UNHEALTHY if health.has_failed else ExitCode.SUCCESS


def _check_nodes(
    line: CommandLine, environ: Mapping[str, str], called: str, *, as_json: bool
) -> int | None:
    """Check all nodes of a job, and return the exit code; None if this is its only node."""
    # These import most of the launcher, which a check of this machine alone does not need.
    from clusterrun.clients.launches import CLUSTERRUN, ChildLaunches
    from clusterrun.job.resolve import resolve
    from clusterrun.job.this_process import this_process

    job, variables = node_check_job(line, environ)
    try:
        resolved = resolve(job, variables, this_process(called))
    except UsageError as error:
        raise UsageError(error.message, hint_for_doctor(error.hint, line)) from None
    if resolved.over_ssh is None and resolved.job.agents == 1:
        warn(resolved.warnings)
        return None
    with ChildLaunches(variables) as launches:
        code, printed = launches.run([*CLUSTERRUN, *job.argv()])
    if launches.interrupted:
        return launches.interrupted
    results = list(_parse_results(printed))
    # A job that could not start has printed its own errors.
    _print_tables([each.health for each in results if each.health], as_json=as_json)
    return EXIT_UNHEALTHY if any(each.has_failed for each in results) else code


def node_check_job(
    line: CommandLine, environ: Mapping[str, str]
) -> tuple[CommandLine, dict[str, str]]:
    """Return the command line and the environment of the job that checks the nodes of a job."""
    found, variables = options_from_sources(line, environ)
    log_dir = found["log_dir"][-1].value if "log_dir" in found else ""
    return CommandLine(
        {**connection_options(found), **FIXED_OPTIONS}, (PROGRAM, log_dir)
    ), variables


def options_from_sources(
    line: CommandLine, environ: Mapping[str, str]
) -> tuple[Layer, dict[str, str]]:
    """Return the options set by flags, variables and a job file; and the variables that set no option.

    Values of ``env`` are returned in a variable, because other users can read a command line.
    """
    from clusterrun.job.resolve import read_sources

    layers, _, _ = read_sources(line, environ)
    found = {name: texts for name in OPTIONS if (texts := _strongest_settings(name, layers))}
    read = {prefix + name.upper() for prefix in (PREFIX, TORCHRUN_PREFIX) for name in NAMES}
    variables = {name: value for name, value in environ.items() if name not in read}
    if "env" in found:
        variables[ENV_VARIABLE] = "\n".join(text.value for text in found["env"])
    return found, variables


def connection_options(found: Layer) -> Layer:
    """Return the ``CONNECTION_OPTIONS`` that are set, with defaults that doctor's jobs need."""
    options = {name: texts for name, texts in found.items() if name in CONNECTION_OPTIONS}
    return {**options, **_node_count_and_timeout(found)}


def _strongest_settings(name: str, layers: Sequence[Layer]) -> tuple[Setting[Any], ...]:
    """Return the values from the strongest source; for a repeated option from all, weakest first."""
    set_by = [texts for layer in layers if (texts := layer.get(name))]
    if OPTIONS[name].value.repeated:
        return tuple(text for texts in reversed(set_by) for text in texts)
    return set_by[0] if set_by else ()


def hint_for_doctor(hint: str, line: CommandLine) -> str:
    """Return a hint about the job that checks nodes, rewritten for the ``clusterrun doctor`` command."""
    added = shell_line(
        CommandLine({**_node_count_and_timeout(line.options), **FIXED_OPTIONS}).argv()
    )
    plain = re.sub(rf" {re.escape(PROGRAM)} \S+", "", hint.replace(f" {added}", ""))
    if plain == hint:
        return hint
    return re.sub(r"(?m)\bclusterrun( |$)", r"clusterrun doctor\1", plain)


def _node_count_and_timeout(found: Layer) -> Layer:
    """Return a default timeout, and a node count that includes spares, if these are set."""
    added = {} if "rdzv_timeout" in found else typed(rdzv_timeout=SECONDS_TO_JOIN)
    if "nnodes" in found and "spares" in found:
        nodes, spares = (found[name][-1].value for name in ("nnodes", "spares"))
        if nodes.isdecimal() and spares.isdecimal():
            return {**added, **typed(nnodes=str(int(nodes) + int(spares)))}
    return added


def _parse_results(printed: bytes) -> "Iterator[NodeResult]":
    """Yield the results that processes of this node have printed; with ssh, those of all nodes."""
    from msgspec import json

    from clusterrun.clients.doctor.node_program import NodeResult

    for line in printed.splitlines():
        # With ssh, the line begins with a prefix that names rank and host.
        start = line.find(b'{"has_failed"')
        if start >= 0:
            yield json.decode(line[start:], type=NodeResult)


def _print_tables(found: Sequence[Health], *, as_json: bool) -> None:
    """Print the table of all nodes or of this machine, then tables of nodes that were not compared."""
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
