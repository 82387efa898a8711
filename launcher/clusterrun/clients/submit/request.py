"""What may be asked of a scheduler: the options of ``clusterrun submit``.

They are keys of the sections of a job file, too, and no variables: schedulers have their own.
"""

import re
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, ClassVar

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Fact, Option, Value, rows_of
from clusterrun.job.program import find_executable
from clusterrun.job.sources import Layer, find
from clusterrun.job.suggestions import did_you_mean
from clusterrun.job.values import choice, number

SCHEDULERS = {
    "slurm": "sbatch",
    "lsf": "bsub",
    "flux": "flux",
    "pbs": "qsub",
    "kubernetes": "kubectl",
}
"""Schedulers that jobs are submitted to, each with the command that submits one.

Slurm is looked for first: it comes with wrappers that are called bsub and qsub. Kubernetes is the
last: login nodes have kubectl for other purposes.
"""


class Gpus(Struct, frozen=True):
    """GPUs of one node."""

    number: int
    model: str = ""
    """As the scheduler calls it, such as ``h100`` or, for Kubernetes, ``amd.com/gpu``; "": any."""

    def __str__(self) -> str:
        """Return the value as typed: ``h100:8``."""
        return f"{self.model}:{self.number}" if self.model else str(self.number)


class ManifestKind(Enum):
    """What the pods of a job belong to."""

    JOB = "job"
    """An Indexed Job with a headless service: on every cluster."""

    JOBSET = "jobset"
    """A JobSet of the controller of that name."""

    TRAINJOB = "trainjob"
    """A TrainJob of Kubeflow's Trainer, with a TrainingRuntime of its own."""

    PYTORCHJOB = "pytorchjob"
    """A PyTorchJob of Kubeflow's Training Operator."""


LONGEST_SHOWN = 60
"""Characters of a value that is wrong."""

LONGEST_TIME = 10 * 365 * 86_400
"""Seconds: no queue has a longer limit, and not every scheduler has room for one."""

LONGEST_DNS_NAME = 253

MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}

_SECONDS = (86_400, 3_600, 60, 1)
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)")
_IN_UNITS = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")
_SIZE = re.compile(r"(\d{1,9})([KMGT])(?:i?B)?", re.IGNORECASE)
_GPUS = re.compile(r"(?:([A-Za-z][\w./-]*):)?(\d{1,4})")
_NAME = re.compile(r"[A-Za-z0-9_][\w.@+/=-]*")
_DNS_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")


def _scheduler(text: str) -> str:
    if text not in SCHEDULERS:
        raise UsageError(
            f"{text!r} is not a scheduler that clusterrun submits to",
            did_you_mean(text, SCHEDULERS) or f"give one of {', '.join(SCHEDULERS)}",
        )
    return text


def _time_limit(text: str) -> int:
    """Read ``2:00:00``, ``1-12:00:00``, ``90m`` or ``1d12h``; seconds.

    A plain number or ``2:30`` means minutes, hours or seconds by the scheduler, and is refused.
    """
    found = _CLOCK.fullmatch(text) or _IN_UNITS.fullmatch(text)
    parts = found.groups() if found else ()
    seconds = sum(int(part or 0) * size for part, size in zip(parts, _SECONDS, strict=False))
    if not 0 < seconds <= LONGEST_TIME:
        raise UsageError(
            f"{_shortened(text)} is not a time limit",
            "give, for example, 2:00:00, 90m, 12h or 1-12:00:00",
        )
    return seconds


def _memory_size(text: str) -> int:
    """Read ``64G`` or ``64GiB``; MiB."""
    found = _SIZE.fullmatch(text)
    size = int(int(found[1]) * MIB[found[2].upper()]) if found else 0
    if not size:
        raise UsageError(
            f"{_shortened(text)} is not a size of memory", "give, for example, 64G or 500M"
        )
    return size


def _shortened(text: str) -> str:
    return repr(text if len(text) < LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}...")


def _gpus(text: str) -> Gpus:
    """Read ``8`` or ``h100:8``."""
    found = _GPUS.fullmatch(text)
    if not found:
        raise UsageError(
            f"{text!r} is not a number of GPUs", "give, for example, 8 or h100:8; 0 for none"
        )
    return Gpus(int(found[2]), found[1] or "")


def _name(text: str) -> str:
    """Read a name that a scheduler gives: of a job, a partition, an account."""
    if not _NAME.fullmatch(text):
        raise UsageError(
            f"{text!r} is not a name", "give letters, digits and any of _ . @ + / = - between them"
        )
    return text


def _names(text: str) -> str:
    """Read one name or several, such as partitions of which the job may have any: ``a100,h100``."""
    for each in text.split(","):
        _name(each)
    return text


def _constraint(text: str) -> str:
    """Read features of nodes as Slurm combines them: ``a100|h100``, ``[rack1|rack2]``."""
    if not text or re.search(r"[\s\"'\\`$]", text):
        raise UsageError(
            f"{text!r} is not a constraint", "give features of nodes, such as a100 or a100|h100"
        )
    return text


def _image(text: str) -> str:
    """Read the file or the name of a container's image."""
    if not text or re.search(r"[\s\"'\\]", text):
        raise UsageError(
            f"{text!r} is not an image",
            "give a file, such as train.sif, or a name, such as docker://REGISTRY/NAME:TAG",
        )
    return text


def _mounts(text: str) -> tuple[str, ...]:
    """Read ``SOURCE:TARGET,...``."""
    found = tuple(part.strip() for part in text.split(","))
    for part in found:
        if not part.startswith("/") or re.search(r"[\s\"']", part):
            raise UsageError(
                f"{part!r} is not a folder to mount", "give, for example, /data or /data:/mnt/data"
            )
    return found


def _line(text: str) -> str:
    if not text.strip() or len(text.splitlines()) > 1:
        raise UsageError(f"{text!r} is not one line", "give one line; repeat it for more")
    return text


def _directive(text: str) -> str:
    """Read one directive; YAML for Kubernetes may have several lines."""
    if not text.strip():
        raise UsageError(f"{text!r} is no directive", "give one, such as --mail-type=END")
    return text


def _dns_name(text: str) -> str:
    """Read the name of an object: small letters, digits, - and . (RFC 1123)."""
    if not _DNS_NAME.fullmatch(text) or len(text) > LONGEST_DNS_NAME:
        raise UsageError(f"{text!r} is not a name", "give small letters, digits, - and .")
    return text


Name = Annotated[str, Value(_name, "NAME")]


class Queued(Struct, frozen=True):
    """Which scheduler has a job, or gets one."""

    title: ClassVar = "Which scheduler"

    to: Annotated[
        str,
        Value(_scheduler, "|".join(SCHEDULERS)),
        Option("The scheduler", default="the one whose command is on PATH"),
    ] = ""


class Submit(Struct, frozen=True):
    """What ``clusterrun submit`` does with what it has written."""

    title: ClassVar = "What becomes of it"

    print: Annotated[
        bool, Option("Print what would be submitted, and submit nothing", in_file=False)
    ] = False
    follow: Annotated[
        bool,
        Option(
            "Show the job's state and what it prints, and exit with its code; Ctrl-C leaves it",
            in_file=False,
        ),
    ] = False


class Request(Struct, frozen=True):
    """All that a job asks its scheduler for; "" and None are not set."""

    title: ClassVar = "What is asked of a scheduler"

    job_name: Annotated[Name, Option("The job's name", default="that of SCRIPT")] = ""
    gpus_per_node: Annotated[
        Gpus | None,
        Value(_gpus, "[MODEL:]N"),
        Option("GPUs on each node; 0 for none", default="those that --nproc-per-node workers need"),
    ] = None
    cpus_per_gpu: Annotated[
        int | None,
        number("a number of CPUs", 1),
        Option(
            "CPUs for each GPU, or for each worker if there are no GPUs",
            default="a GPU's part of a node if the scheduler tells, else its default; one for each"
            " worker without a GPU",
        ),
    ] = None
    memory_per_gpu: Annotated[
        int | None,
        Value(_memory_size, "SIZE"),
        Option(
            "Memory for each GPU or worker, such as 64G",
            default="the scheduler's; all of it with --exclusive",
        ),
    ] = None
    """MiB."""
    time: Annotated[
        int | None,
        Value(_time_limit, "LIMIT"),
        Option(
            "When the scheduler ends the job, such as 2:00:00, 90m or 1-12:00:00",
            default="the scheduler's",
        ),
    ] = None
    """Seconds."""
    partition: Annotated[
        str,
        Value(_names, "NAME"),
        Option("The partition or queue", aliases=("queue",), default="the scheduler's"),
    ] = ""
    account: Annotated[
        Name, Option("The account or project that pays", default="the scheduler's")
    ] = ""
    qos: Annotated[Name, Option("Slurm: the quality of service", default="the scheduler's")] = ""
    constraint: Annotated[
        str,
        Value(_constraint, "FEATURES"),
        Option("Slurm: features that the nodes must have, such as a100|h100", default="none"),
    ] = ""
    exclusive: Annotated[bool, Option("Whole nodes, with all of their GPUs, CPUs and memory")] = (
        False
    )
    image: Annotated[
        str,
        Value(_image, "IMAGE"),
        Option(
            "Run in a container of this image, which has clusterrun on its PATH: by apptainer if it"
            " ends in .sif or begins with a scheme, else by pyxis or Kubernetes",
            default="no container",
        ),
    ] = ""
    mounts: Annotated[
        tuple[str, ...],
        Value(_mounts, "SOURCE:TARGET,..."),
        Option("Folders that the container sees besides the current one", default="none"),
    ] = ()
    setup: Annotated[
        tuple[str, ...],
        Value(_line, "LINE", repeated=True),
        Option(
            "A line of shell to run first on the first node, such as 'module load cuda'; may be"
            " repeated",
            default="none",
        ),
    ] = ()
    directive: Annotated[
        tuple[str, ...],
        Value(_directive, "LINE", repeated=True),
        Option(
            "One more directive, such as --directive=--mail-type=END; for Kubernetes, YAML of the"
            " pod's spec; may be repeated",
            default="none",
        ),
    ] = ()
    kind: Annotated[
        ManifestKind,
        choice(ManifestKind, "a kind of job"),
        Option("Kubernetes: what the pods belong to"),
    ] = ManifestKind.JOB
    namespace: Annotated[
        str,
        Value(_dns_name, "NAME"),
        Option("Kubernetes: the namespace", default="that of kubectl's context"),
    ] = ""


ROWS = rows_of(Queued, Submit, Request)
"""All of them, by name."""


def find_scheduler(sources: Sequence[Layer], search_path: str) -> Fact[str]:
    """Return the scheduler that is set, else the first whose command is on ``search_path``.

    Raises:
        UsageError: none is set, and none is found.

    """
    if given := find("to", sources, ROWS):
        return given
    for name, command in SCHEDULERS.items():
        if path := find_executable(command, search_path):
            return Fact(name, path)
    commands = ", ".join(SCHEDULERS.values())
    raise UsageError(
        f"this machine has no scheduler: none of {commands} is on PATH",
        "type it on a login node, or print what would be submitted:\n"
        f"  clusterrun submit --to {next(iter(SCHEDULERS))} --print ...",
    )


def expect_command(scheduler: Fact[str], search_path: str) -> None:
    """Check that the scheduler can be asked.

    Raises:
        UsageError: its command is not on ``search_path``.

    """
    command = SCHEDULERS[scheduler.value]
    if not find_executable(command, search_path):
        raise UsageError(
            f"{scheduler.origin} {scheduler.value}: {command} is not on PATH",
            "type it on a login node, or add --print to see what would be submitted",
        )
