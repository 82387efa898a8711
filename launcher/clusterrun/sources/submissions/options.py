"""The options that only ``clusterrun submit`` has.

They are keys of the sections of a job file, too, and no variables: schedulers have their own.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Struct

from clusterrun.domain.submissions.pods import ManifestKind, MountedName, Toleration
from clusterrun.domain.submissions.submission import (
    ContainerRuntime,
    Dependency,
    Gpus,
    JobArray,
    SignalBeforeEnd,
)
from clusterrun.job import values
from clusterrun.job.declaring import Fact, Option, Value, rows_of
from clusterrun.job.sources import Layer, value_of
from clusterrun.job.values import choice, number
from clusterrun.sources.submissions import pods, requests

Name = Annotated[str, Value(requests.name, "NAME")]
OutputFile = Annotated[str, Value(requests.file_pattern, "FILE")]
Lines = Annotated[tuple[str, ...], Value(requests.line, "LINE", repeated=True)]
MountedNames = Annotated[tuple[MountedName, ...], Value(pods.mounted_names, "NAME:/FOLDER,...")]


class Queued(Struct, frozen=True):
    title: ClassVar = "Which scheduler"

    to: Annotated[
        str,
        Value(requests.scheduler, "|".join(requests.SCHEDULERS)),
        Option("The scheduler", default="the one whose command is on PATH"),
    ] = ""


class Submit(Struct, frozen=True):
    title: ClassVar = "What is asked of a scheduler"

    print: Annotated[
        bool, Option("Print what would be submitted, and submit nothing", in_file=False)
    ] = False
    save: Annotated[
        values.NewFile,
        Option("Write it to FILE, and submit nothing", default="no file", in_file=False),
    ] = ""
    wait: Annotated[
        bool, Option("Wait for the end of the job, and exit with its code", in_file=False)
    ] = False
    follow: Annotated[
        bool,
        Option(
            "As --wait, and show the job's state and what it prints; Ctrl-C leaves it",
            in_file=False,
        ),
    ] = False
    quiet: Annotated[
        bool, Option("Print only the job's id, and its output with --follow", in_file=False)
    ] = False
    job_name: Annotated[Name, Option("The job's name", default="that of SCRIPT")] = ""
    gpus_per_node: Annotated[
        Gpus | None,
        Value(requests.gpus, "[MODEL:]N"),
        Option("GPUs on each node; 0 for none", default="those that --nproc-per-node workers need"),
    ] = None
    cpus_per_gpu: Annotated[
        int | None,
        number("a number of CPUs", 1),
        Option(
            "CPUs for each GPU, or for each worker if there are no GPUs",
            default="a GPU's part of a node if the scheduler tells, else its default",
        ),
    ] = None
    memory_per_gpu: Annotated[
        int | None,
        Value(requests.memory_size, "SIZE"),
        Option(
            "Memory for each GPU or worker, such as 64G",
            default="the scheduler's; all of it with --exclusive",
        ),
    ] = None
    time: Annotated[
        int | None,
        Value(requests.time_limit, "LIMIT"),
        Option(
            "When the scheduler ends the job, such as 2:00:00, 90m or 1-12:00:00",
            default="the scheduler's",
        ),
    ] = None
    partition: Annotated[
        Name, Option("The partition or queue", aliases=("queue",), default="the scheduler's")
    ] = ""
    account: Annotated[
        Name, Option("The account or project that pays", default="the scheduler's")
    ] = ""
    qos: Annotated[Name, Option("The quality of service", default="the scheduler's")] = ""
    constraint: Annotated[
        str,
        Value(requests.constraint, "FEATURES"),
        Option("Features that the nodes must have, such as a100|h100", default="none"),
    ] = ""
    exclusive: Annotated[bool, Option("Whole nodes, with all of their GPUs, CPUs and memory")] = (
        False
    )
    array: Annotated[
        JobArray | None,
        Value(requests.array, "0-15[%4]"),
        Option("Run the job once for each number; with %4, four at a time", default="no array"),
    ] = None
    dependency: Annotated[
        tuple[Dependency, ...],
        Value(requests.dependencies, "[WHEN:]ID,..."),
        Option(
            "Start after other jobs: ID must succeed; WHEN is after, afterok, afternotok or"
            " afterany",
            default="none",
        ),
    ] = ()
    signal: Annotated[
        SignalBeforeEnd | None,
        Value(requests.signal_before_end, "NAME@SECONDS"),
        Option("Send a signal so long before the time limit, such as USR1@300", default="none"),
    ] = None
    output: Annotated[
        OutputFile,
        Option("Where the scheduler writes what the job prints", default="the scheduler's"),
    ] = ""
    error: Annotated[
        OutputFile, Option("The same for standard error", default="the file of --output")
    ] = ""
    image: Annotated[
        str,
        Value(requests.image, "IMAGE"),
        Option(
            "Run in a container of this image, which has clusterrun on its PATH",
            default="no container",
        ),
    ] = ""
    container: Annotated[
        ContainerRuntime | None,
        choice(ContainerRuntime, "a container runtime"),
        Option(
            "What starts the container",
            default="apptainer for an image that ends in .sif or begins with a scheme, else pyxis",
        ),
    ] = None
    mounts: Annotated[
        tuple[str, ...],
        Value(requests.mounts, "SOURCE:TARGET,..."),
        Option("Folders that the container sees besides the current one", default="none"),
    ] = ()
    modules: Annotated[
        tuple[str, ...],
        Value(requests.names, "NAME,..."),
        Option("Environment modules to load first", default="none"),
    ] = ()
    setup: Annotated[
        Lines,
        Option("A line of shell to run first on the first node; may be repeated", default="none"),
    ] = ()
    directive: Annotated[
        Lines,
        Option(
            "One more directive, such as --directive=--mail-type=END; may be repeated",
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
        Value(pods.dns_name, "NAME"),
        Option("Kubernetes: the namespace", default="that of kubectl's context"),
    ] = ""
    gpu_resource: Annotated[
        str,
        Value(pods.resource, "NAME"),
        Option("Kubernetes: what the vendor's device plugin calls a GPU, such as amd.com/gpu"),
    ] = "nvidia.com/gpu"
    node_selector: Annotated[
        tuple[tuple[str, str], ...],
        Value(pods.node_selector, "KEY=VALUE,..."),
        Option("Kubernetes: labels that the nodes must have", default="none"),
    ] = ()
    tolerations: Annotated[
        tuple[Toleration, ...],
        Value(pods.tolerations, "KEY[=VALUE][:EFFECT],..."),
        Option("Kubernetes: taints of nodes that the pods accept", default="none"),
    ] = ()
    secrets: Annotated[
        MountedNames,
        Option("Kubernetes: Secrets whose keys are files in a folder", default="none"),
    ] = ()
    claims: Annotated[
        MountedNames,
        Option("Kubernetes: PersistentVolumeClaims, and where pods see them", default="none"),
    ] = ()


ROWS = rows_of(Queued, Submit)
"""In the order of the help."""


def asked_for(name: str, asked: Sequence[Layer], default: Fact[Any] | None = None) -> Fact[Any]:
    """Return the value of one of these options, as ``clusterrun.job.sources.value_of`` does."""
    return value_of(name, asked, default, ROWS)
