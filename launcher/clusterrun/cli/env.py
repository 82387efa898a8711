"""``clusterrun env``: what a bug report needs, without secrets."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from msgspec import Struct

from clusterrun.bounds import counted
from clusterrun.cli.printing import print_json, print_text
from clusterrun.cpuset import own_cpus
from clusterrun.errors import LauncherError
from clusterrun.job.clusters.detection import detect
from clusterrun.job.clusters.found import DetectionContext, Variables
from clusterrun.job.declarations import Setting
from clusterrun.job.options import Launcher
from clusterrun.job.redaction import REDACTED, redacted
from clusterrun.job.sources import CommandLine
from clusterrun.job.this_process import this_process
from clusterrun.machine.host_facts import host_facts
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.report.tables import aligned

PACKAGES = (
    *("clusterrun", "torch", "numpy", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    *("nvidia-cudnn-cu12", "lightning", "accelerate", "deepspeed", "transformers"),
    *("msgspec", "click", "psutil", "rich", "cloudpickle", "py-spy"),
)
"""Packages whose versions matter to a job, and clusterrun's dependencies."""

SHOWN = re.compile(
    r"(CLUSTERRUN|PET|NCCL|TORCH|TORCHELASTIC|GLOO|TP|UCX|OMP|MKL|KMP|GOMP|CUDA|NVIDIA|HIP|ROCR|"
    r"ZE|ASCEND|SLURMD?|PBS|LSB|FLUX|OMPI|PMI|PMIX|PYTHON|VIRTUAL|CONDA)_\w+"
    r"|(MASTER|RANK|WORLD|LOCAL|GROUP|NODE)_?\w*|PATH|PYTHONPATH|LD_\w+|TMPDIR|XDG_RUNTIME_DIR|"
    r"PYTHON\w+|LANG|LC_ALL|TERM|NO_COLOR"
)
"""Names that jobs, schedulers and training libraries use. Other variables are not shown."""

_WITH_VALUE = re.compile(
    r"(CLUSTERRUN|PET|NCCL|GLOO|OMP|CUDA|HIP)_\w+|LD_LIBRARY_PATH|MASTER_(ADDR|PORT)"
    r"|((LOCAL|GROUP|NODE)_)?(RANK|WORLD_SIZE)|SLURMD?(_\w+)?_(NODELIST|NODENAME|IPADDR)"
)
"""Names whose values are shown. Values of other variables may contain secrets."""

_WITH_NUMBERS = re.compile(r"SLURM_\w+")
"""Names whose values are shown if they are numbers, such as ``8(x2)``."""

_NUMBERS = re.compile(r"[\d,()x-]+")


class _Environment(Struct, frozen=True):
    """What ``clusterrun env --json`` prints."""

    python: dict[str, str]
    packages: dict[str, str]
    host: dict[str, str]
    machine: dict[str, str]
    variables: dict[str, str]


def execute(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Print the report. torch is not imported."""
    found = _Environment(
        python=dict(_python(called)),
        packages=dict(_packages()),
        host=dict(host_facts(Tree(ROOT))),
        machine=dict(_machine(environ, called)),
        variables=shown_variables(environ),
    )
    if line.read(Launcher).json:
        return print_json(found)
    sections = {
        "Python": found.python,
        "Packages": found.packages,
        "Host": found.host,
        "Machine": found.machine,
        "Variables": found.variables,
    }
    return print_text("\n\n".join(_section(name, rows) for name, rows in sections.items()))


def _section(name: str, rows: Mapping[str, str]) -> str:
    return "\n".join([f"{name}:", *(f"  {line}" for line in aligned(rows.items()))])


def _python(called: str) -> Iterator[tuple[str, str]]:
    yield "called as", called
    yield "version", " ".join(sys.version.split())
    yield "interpreter", sys.executable
    yield "clusterrun is in", str(Path(__file__).parents[1])


def _packages() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _machine(environ: Mapping[str, str], called: str) -> Iterator[tuple[str, str]]:
    machine = inspect(Tree(ROOT), environ, own_cpus(), "")
    yield "allowed CPUs", str(machine.allowed)
    yield "cores", str(len(machine.cores))
    yield "NUMA nodes", str(len(machine.nodes))
    quota = machine.cpu_quota
    yield "CPU quota", "none" if quota is None else counted(quota, "CPU")
    driver = Tree(ROOT).text("proc/driver/nvidia/version").partition("\n")[0]
    yield "NVIDIA driver", driver or "none"
    for gpu in machine.gpus:
        node = "unknown" if gpu.numa_node is None else str(gpu.numa_node)
        yield f"GPU {gpu.index}", f"{gpu.model or gpu.vendor}, NUMA node {node} ({gpu.node_source})"
    by = f" ({machine.visible_origin})" if machine.visible_origin else ""
    yield "visible GPUs", f"{len(machine.visible)}{by}"
    if machine.accelerators:
        yield "accelerators", machine.accelerators
    yield "cluster", _cluster(environ, called)


def _cluster(environ: Mapping[str, str], called: str) -> str:
    context = DetectionContext(this_process(called), CommandLine())
    try:
        return str(detect(Setting("", "default"), Variables(environ), context).cluster)
    except LauncherError as error:
        return f"contradictory: {error.message}"


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to show, sorted by name, without secrets."""
    return {
        name: redacted(name, value) if _has_value(name, value) else REDACTED
        for name, value in sorted(variables.items())
        if SHOWN.fullmatch(name)
    }


def _has_value(name: str, value: str) -> bool:
    has_numbers = _WITH_NUMBERS.fullmatch(name) and _NUMBERS.fullmatch(value)
    return bool(_WITH_VALUE.fullmatch(name) or has_numbers)
