"""The runs of ``clusterrun bench``, from its command line."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from shutil import which

from msgspec.structs import replace

from clusterrun.benchmarking.options import Measuring, VariantText, counts
from clusterrun.benchmarking.results import Reading
from clusterrun.benchmarking.runs import Run, Size, Variant, all_runs
from clusterrun.cli.splitting import split
from clusterrun.domain.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import Variables
from clusterrun.job.clusters.slurm import allocation_here
from clusterrun.job.declaring import rows_of
from clusterrun.job.resolve import resolve
from clusterrun.job.sources import CommandLine, typed
from clusterrun.job.this_process import this_process
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree

STARTS_NODES = """\
bench starts other nodes by ssh:
  clusterrun bench --launcher ssh --hosts a,b ...
or by srun, in a batch script or a shell of salloc; type no srun before it"""


_SIZE = ("bench sets the size of each run", "give --nproc 1,2,4 and --nnodes 1,2 before the script")
_READ = ("bench reads what all ranks print", "leave it out")
_BY_HAND = ("a run of bench has no terminal", "leave it out; clusterrun watch shows a run")
_FOLDER = ("bench has one folder for all runs", "give --log-dir before the script")

Refused = Mapping[str, tuple[str, str]]
"""Options that no run can keep: why, and what to do instead."""

REFUSED: Refused = {
    "nproc_per_node": _SIZE,
    **dict.fromkeys(("log_line_prefix_template", "ranks", "local_ranks_filter"), _READ),
    **dict.fromkeys(("debug", "pdb"), _BY_HAND),
}
IN_A_VARIANT: Refused = {**REFUSED, "nnodes": _SIZE, "log_dir": _FOLDER}


def plan_runs(
    line: CommandLine, environ: Mapping[str, str], called: str
) -> tuple[list[Run], Reading]:
    """Return the runs, and how their outputs are read.

    Raises:
        UsageError: a run is impossible.

    """
    _refuse(line, REFUSED, "")
    asked = line.read(Measuring)
    reading = Reading(asked.metric, asked.warm_up)
    # What all runs have.
    job = line.without({*rows_of(Measuring), "json", "log_dir", "nnodes"})
    variants = list(_variants(job, asked.variant, called))
    process = this_process(called)
    allocation = allocation_here(Variables(environ)) if _may_use_slurm(job, environ) else None
    if allocation is not None:
        # A batch script alone, without srun, is the only node there is.
        job = job.over(typed(nnodes="1"))
    given = resolve(job, environ, process)
    if given.over_ssh is None and given.job.agents > 1:
        raise UsageError(
            f"bench starts other nodes itself, and is one of {given.job.agents} processes here"
            f" ({given.job.origin('nnodes')})",
            STARTS_NODES,
        )
    hosts = tuple(given.over_ssh.hosts) if given.over_ssh else ()
    most = len(hosts) or (allocation.nodes if allocation else 1)
    sizes = _sizes(line, asked.nproc, most, environ)
    runs = list(all_runs(variants, sizes, asked.rounds, hosts, allocation))
    for run in runs:
        resolve(replace(run, allocation=None).line(Path()), environ, process)
    return runs, reading


def _may_use_slurm(job: CommandLine, environ: Mapping[str, str]) -> bool:
    """Return whether there is srun, and neither --cluster none nor --launcher ssh is typed."""
    names = [text.value for text in job.options.get("cluster", ())]
    asked = names[-1:] in ([], ["slurm"]) and "launcher" not in job.options
    return asked and which("srun", path=environ.get("PATH")) is not None


def _variants(job: CommandLine, texts: Sequence[VariantText], called: str) -> Iterator[Variant]:
    if not texts:
        yield Variant("script", job)
    names = [text.name for text in texts]
    for text in texts:
        if names.count(text.name) > 1:
            raise UsageError(
                f"--variant: two variants are called {text.name}", "rename one of them"
            )
        line = job.over(_options_of(text, called).options)
        yield Variant(text.name, CommandLine(line.options, (*job.words, *text.args)))


def _options_of(text: VariantText, called: str) -> CommandLine:
    where = f"--variant {text.name}: "
    try:
        found = split(text.options, called, takes_script=False)
    except UsageError as error:
        hint = error.hint or _behind_dashes(text, text.options)
        raise UsageError(f"{where}{error.message}", hint) from None
    _refuse(found, IN_A_VARIANT, where)
    if found.words:
        raise UsageError(f"{where}{found.words[0]} is no option", _behind_dashes(text, found.words))
    return found


def _refuse(line: CommandLine, refused: Refused, where: str) -> None:
    for name, (why, instead) in refused.items():
        if name in line.options:
            raise UsageError(f"{where}{line.options[name][-1].origin}: {why}", instead)


def _behind_dashes(text: VariantText, words: Sequence[str]) -> str:
    return f"put -- before arguments of the script: '{text.name}: -- {' '.join(words)}'"


def _sizes(
    line: CommandLine, nproc: Sequence[int], most: int, environ: Mapping[str, str]
) -> list[Size]:
    """Return the sizes to run; there are ``most`` nodes."""
    nodes: tuple[int, ...] = (most,)
    if "nnodes" in line.options:
        try:
            nodes = counts(line.options["nnodes"][-1].value)
        except UsageError as error:
            raise UsageError(f"--nnodes: {error.message}", error.hint) from None
    if max(nodes) > most:
        raise UsageError(
            f"--nnodes: {max(nodes)} nodes need as many hosts, and there"
            f" {'is 1' if most == 1 else f'are {most}'}",
            STARTS_NODES,
        )
    workers = nproc or _usual_counts(environ)
    sizes = [Size(*each) for each in product(nodes, workers)]
    return sorted(sizes, key=lambda size: (size.ranks, size.nodes))


def _usual_counts(environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return 1, 2, 4 and so on up to the number of visible GPUs, and that number."""
    machine = inspect(Tree(Path("/")), environ, CpuSet(os.sched_getaffinity(0)), "")
    most = max(1, len(machine.visible))
    powers = [1 << number for number in range(most.bit_length())]
    return tuple(dict.fromkeys([*powers, most]))
