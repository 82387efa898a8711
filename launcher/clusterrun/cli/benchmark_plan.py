"""The runs of ``clusterrun bench``, from its command line."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from shutil import which

from msgspec.structs import replace

from clusterrun.benchmarking.results import Reading
from clusterrun.benchmarking.runs import Run, Size, Variant, all_runs
from clusterrun.cli.parsing import parse
from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.declaring import flag
from clusterrun.machine.inspect import inspect
from clusterrun.sources.clusters.slurm_allocation import allocation_here
from clusterrun.sources.clusters.variables import Variables
from clusterrun.sources.options.option import Option
from clusterrun.sources.options.rows.debugging import DEBUG, PDB
from clusterrun.sources.options.rows.files import LOG_DIR
from clusterrun.sources.options.rows.launcher import JSON
from clusterrun.sources.options.rows.measuring import (
    METRIC,
    NPROC,
    ROUNDS,
    ROWS,
    VARIANT,
    WARM_UP,
    VariantText,
    counts,
)
from clusterrun.sources.options.rows.output import (
    LOCAL_RANKS_FILTER,
    LOG_LINE_PREFIX_TEMPLATE,
    RANKS,
)
from clusterrun.sources.options.rows.reaching import LAUNCHER
from clusterrun.sources.options.rows.workers import CLUSTER, NNODES, NPROC_PER_NODE
from clusterrun.sources.resolve import resolve
from clusterrun.sources.settings import CommandLine, Settings, settings_from_flags, value_of
from clusterrun.sources.this_process import this_process

STARTS_NODES = """\
bench starts other nodes by ssh:
  clusterrun bench --launcher ssh --hosts a,b ...
or by srun, in a batch script or a shell of salloc; type no srun before it"""


Refused = tuple[Option[object], tuple[str, str]]
"""An option that no run can keep: why, and what to do instead."""

_SIZE = ("bench sets the size of each run", "give --nproc 1,2,4 and --nnodes 1,2 before the script")
_READ = ("bench reads what all ranks print", "leave it out")
_BY_HAND = ("a run of bench has no terminal", "leave it out; clusterrun watch shows a run")
_FOLDER = ("bench has one folder for all runs", "give --log-dir before the script")

REFUSED: tuple[Refused, ...] = (
    (NPROC_PER_NODE, _SIZE),
    *((each, _READ) for each in (LOG_LINE_PREFIX_TEMPLATE, RANKS, LOCAL_RANKS_FILTER)),
    *((each, _BY_HAND) for each in (DEBUG, PDB)),
)
IN_A_VARIANT: tuple[Refused, ...] = (*REFUSED, (NNODES, _SIZE), (LOG_DIR, _FOLDER))


def plan_runs(
    line: CommandLine, environ: Mapping[str, str], called: str
) -> tuple[list[Run], Reading]:
    """Return the runs, and how their outputs are read.

    Raises:
        UsageError: a run is impossible.

    """
    _refuse(line, REFUSED, "")
    settings = settings_from_flags(line.flags, line.spelled, ROWS)
    reading = Reading(value_of(METRIC, [settings]).value, value_of(WARM_UP, [settings]).value)
    job = _job(line)
    variants = list(_variants(job, settings, called))
    process = this_process(called)
    allocation = allocation_here(Variables(environ)) if _may_use_slurm(job, environ) else None
    if allocation is not None:
        # A batch script alone, without srun, is the only node there is.
        job = CommandLine({**job.flags, NNODES.name: "1"}, job.words)
    given = resolve(job, environ, process)
    if given.over_ssh is None and given.job.agents > 1:
        raise UsageError(
            f"bench starts other nodes itself, and is one of {given.job.agents} processes here"
            f" ({given.job.nnodes.origin})",
            STARTS_NODES,
        )
    hosts = tuple(given.over_ssh.hosts) if given.over_ssh else ()
    most = len(hosts) or (allocation.nodes if allocation else 1)
    sizes = _sizes(line, settings, most, environ)
    rounds = value_of(ROUNDS, [settings]).value
    runs = list(all_runs(variants, sizes, rounds, hosts, allocation))
    for run in runs:
        resolve(replace(run, allocation=None).line(Path()), environ, process)
    return runs, reading


def _may_use_slurm(job: CommandLine, environ: Mapping[str, str]) -> bool:
    """Return whether there is srun, and neither --cluster none nor --launcher ssh is typed."""
    asked = job.flags.get(CLUSTER.name, "slurm") == "slurm" and LAUNCHER.name not in job.flags
    return asked and which("srun", path=environ.get("PATH")) is not None


def _job(line: CommandLine) -> CommandLine:
    """Return the part of the command line that all runs have."""
    own = {name for option in (*ROWS, JSON, LOG_DIR, NNODES) for name in option.names}
    flags = {name: value for name, value in line.flags.items() if name not in own}
    return CommandLine(flags, line.words)


def _variants(job: CommandLine, settings: Settings, called: str) -> Iterator[Variant]:
    texts = [VARIANT.read(text) for text in settings.get(VARIANT.name, ())]
    if not texts:
        yield Variant("script", job)
    names = [text.value.name for text in texts]
    for text in texts:
        if names.count(text.value.name) > 1:
            raise UsageError(
                f"{text.origin}: two variants are called {text.value.name}", "rename one of them"
            )
        typed = _options_of(text, called)
        flags = {**job.flags, **typed.flags}
        yield Variant(text.value.name, CommandLine(flags, (*job.words, *text.value.args)))


def _options_of(text: Fact[VariantText], called: str) -> CommandLine:
    try:
        typed = parse(text.value.options, called, takes_script=False)
    except UsageError as error:
        where = f"{text.origin} {text.value.name}"
        hint = error.hint or _behind_dashes(text, text.value.options)
        raise UsageError(f"{where}: {error.message}", hint) from None
    _refuse(typed, IN_A_VARIANT, f"{text.origin} {text.value.name}: ")
    if typed.words:
        raise UsageError(
            f"{text.origin} {text.value.name}: {typed.words[0]} is no option",
            _behind_dashes(text, typed.words),
        )
    return typed


def _refuse(line: CommandLine, refused: Sequence[Refused], where: str) -> None:
    for option, (why, instead) in refused:
        if typed := {*option.names} & line.flags.keys():
            raise UsageError(f"{where}{flag(typed.pop())}: {why}", instead)


def _behind_dashes(text: Fact[VariantText], words: Sequence[str]) -> str:
    return f"put -- before arguments of the script: '{text.value.name}: -- {' '.join(words)}'"


def _sizes(
    line: CommandLine, settings: Settings, most: int, environ: Mapping[str, str]
) -> list[Size]:
    """Return the sizes to run; there are ``most`` nodes."""
    nodes: tuple[int, ...] = (most,)
    if NNODES.name in line.flags:
        try:
            nodes = counts(str(line.flags[NNODES.name]))
        except UsageError as error:
            raise UsageError(f"{NNODES.flag}: {error.message}", error.hint) from None
    if max(nodes) > most:
        raise UsageError(
            f"{NNODES.flag}: {max(nodes)} nodes need as many hosts, and there"
            f" {'is 1' if most == 1 else f'are {most}'}",
            STARTS_NODES,
        )
    workers = value_of(NPROC, [settings]).value or _usual_counts(environ)
    sizes = [Size(*each) for each in product(nodes, workers)]
    return sorted(sizes, key=lambda size: (size.ranks, size.nodes))


def _usual_counts(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on up to the number of visible GPUs, and that number."""
    machine = inspect(Path("/"), environ, CpuSet(os.sched_getaffinity(0)), "")
    most = max(1, len(machine.visible))
    powers = [1 << number for number in range(most.bit_length())]
    return tuple(dict.fromkeys([*powers, most]))
