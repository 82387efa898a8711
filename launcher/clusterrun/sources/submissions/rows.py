"""The options that only ``clusterrun submit`` has.

They are keys of the sections of a job file, too, and no variables: schedulers have their own.
"""

from msgspec.structs import replace

from clusterrun.domain.submissions.submission import (
    ContainerRuntime,
    Dependency,
    Gpus,
    JobArray,
    SignalBeforeEnd,
)
from clusterrun.sources.job_files.section_names import SCHEDULERS
from clusterrun.sources.options.option import Kind, Option, switch_option
from clusterrun.sources.options.values import paths, requests
from clusterrun.sources.submissions.pod_rows import POD_ROWS

TO: Option[str] = Option(
    "to",
    parse=requests.scheduler,
    default="",
    metavar="|".join(SCHEDULERS),
    help="The scheduler",
    default_words="the one whose command is on PATH",
)
PRINT = replace(
    switch_option("print", help="Print what would be submitted, and submit nothing"), in_file=False
)
SAVE = Option(
    "save",
    parse=paths.file_path,
    default="",
    metavar="FILE",
    help="Write it to FILE, and submit nothing",
    default_words="no file",
    in_file=False,
)
WAIT = replace(
    switch_option("wait", help="Wait for the end of the job, and exit with its code"), in_file=False
)
FOLLOW = replace(
    switch_option(
        "follow", help="As --wait, and show the job's state and what it prints; Ctrl-C leaves it"
    ),
    in_file=False,
)
QUIET = replace(
    switch_option("quiet", help="Print only the job's id, and its output with --follow"),
    in_file=False,
)
JOB_NAME = Option(
    "job_name",
    parse=requests.name,
    default="",
    metavar="NAME",
    help="The job's name",
    default_words="that of SCRIPT",
)
GPUS_PER_NODE: Option[Gpus | None] = Option(
    "gpus_per_node",
    parse=requests.gpus,
    default=None,
    metavar="[MODEL:]N",
    help="GPUs on each node; 0 for none",
    default_words="those that --nproc-per-node workers need",
)
CPUS_PER_GPU: Option[int | None] = Option(
    "cpus_per_gpu",
    parse=requests.cpu_count,
    default=None,
    metavar="N",
    help="CPUs for each GPU, or for each worker if there are no GPUs",
    default_words="a GPU's part of a node if the scheduler tells, else its default",
)
MEMORY_PER_GPU: Option[int | None] = Option(
    "memory_per_gpu",
    parse=requests.memory_size,
    default=None,
    metavar="SIZE",
    help="Memory for each GPU or worker, such as 64G",
    default_words="the scheduler's; all of it with --exclusive",
)
TIME: Option[int | None] = Option(
    "time",
    parse=requests.time_limit,
    default=None,
    metavar="LIMIT",
    help="When the scheduler ends the job, such as 2:00:00, 90m or 1-12:00:00",
    default_words="the scheduler's",
)
PARTITION = Option(
    "partition",
    parse=requests.name,
    default="",
    metavar="NAME",
    help="The partition or queue",
    aliases=("queue",),
    default_words="the scheduler's",
)
ACCOUNT = Option(
    "account",
    parse=requests.name,
    default="",
    metavar="NAME",
    help="The account or project that pays",
    default_words="the scheduler's",
)
QOS = Option(
    "qos",
    parse=requests.name,
    default="",
    metavar="NAME",
    help="The quality of service",
    default_words="the scheduler's",
)
CONSTRAINT = Option(
    "constraint",
    parse=requests.constraint,
    default="",
    metavar="FEATURES",
    help="Features that the nodes must have, such as a100|h100",
    default_words="none",
)
EXCLUSIVE = switch_option("exclusive", help="Whole nodes, with all of their GPUs, CPUs and memory")
ARRAY: Option[JobArray | None] = Option(
    "array",
    parse=requests.array,
    default=None,
    metavar="0-15[%4]",
    help="Run the job once for each number; with %4, four at a time",
    default_words="no array",
)
DEPENDENCY: Option[tuple[Dependency, ...]] = Option(
    "dependency",
    parse=requests.dependencies,
    default=(),
    metavar="[WHEN:]ID,...",
    help="Start after other jobs: ID must succeed; WHEN is after, afterok, afternotok or afterany",
    default_words="none",
)
SIGNAL: Option[SignalBeforeEnd | None] = Option(
    "signal",
    parse=requests.signal_before_end,
    default=None,
    metavar="NAME@SECONDS",
    help="Send a signal so long before the time limit, such as USR1@300",
    default_words="none",
)
OUTPUT = Option(
    "output",
    parse=requests.file_pattern,
    default="",
    metavar="FILE",
    help="Where the scheduler writes what the job prints",
    default_words="the scheduler's",
)
ERROR = Option(
    "error",
    parse=requests.file_pattern,
    default="",
    metavar="FILE",
    help="The same for standard error",
    default_words="the file of --output",
)
IMAGE = Option(
    "image",
    parse=requests.image,
    default="",
    metavar="IMAGE",
    help="Run in a container of this image, which has clusterrun on its PATH",
    default_words="no container",
)
CONTAINER: Option[ContainerRuntime | None] = Option(
    "container",
    parse=requests.container_runtime,
    default=None,
    metavar="pyxis|apptainer",
    help="What starts the container",
    default_words="apptainer for an image that ends in .sif or begins with a scheme, else pyxis",
)
MOUNTS: Option[tuple[str, ...]] = Option(
    "mounts",
    parse=requests.mounts,
    default=(),
    metavar="SOURCE:TARGET,...",
    help="Folders that the container sees besides the current one",
    default_words="none",
)
MODULES: Option[tuple[str, ...]] = Option(
    "modules",
    parse=requests.names,
    default=(),
    metavar="NAME,...",
    help="Environment modules to load first",
    default_words="none",
)
SETUP: Option[str] = Option(
    "setup",
    parse=requests.line,
    default="",
    metavar="LINE",
    help="A line of shell to run first on the first node; may be repeated",
    kind=Kind.REPEATED,
    default_words="none",
)
DIRECTIVE: Option[str] = Option(
    "directive",
    parse=requests.line,
    default="",
    metavar="LINE",
    help="One more directive, such as --directive=--mail-type=END; may be repeated",
    kind=Kind.REPEATED,
    default_words="none",
)

ROWS: tuple[Option[object], ...] = (
    *(row for row in tuple(globals().values()) if isinstance(row, Option)),
    *POD_ROWS,
)
"""All of them, in the order of the help."""
