"""The one table of options: flags, variables, keys of a job file, defaults and help come from it."""

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.job import MappedGpu, NumaBinding, NumaMemory, StartMethod, WorkerCount
from clusterrun.domain.ranks import RankSet
from clusterrun.domain.streams import StreamChoice
from clusterrun.sources.numa_map_file import numa_map
from clusterrun.sources.options import host_rows, paddle_rows, torchrun_values, values
from clusterrun.sources.options.option import Group, Kind, Option
from clusterrun.sources.options.torchrun_rows import TORCHRUN_OPTIONS

MODULE = Option(
    "module",
    parse=values.switch,
    default=False,
    metavar="",
    help="SCRIPT is the name of a Python module, run as by python -m",
    group=Group.PROGRAM,
    kind=Kind.FLAG,
    short="m",
    everyday=True,
)
NO_PYTHON = Option(
    "no_python",
    parse=values.switch,
    default=False,
    metavar="",
    help="SCRIPT is a program of any kind, found on PATH and run without Python",
    group=Group.PROGRAM,
    kind=Kind.FLAG,
)
RUN_PATH = Option(
    "run_path",
    parse=values.switch,
    default=False,
    metavar="",
    help="SCRIPT is a file, folder or archive, run by runpy.run_path in the folder we are in",
    group=Group.PROGRAM,
    kind=Kind.FLAG,
)
PASS_LOCAL_RANK = Option(
    "pass_local_rank",
    parse=torchrun_values.local_rank_argument,
    default="",
    metavar="[=local-rank|local_rank]",
    help="Give the script --local-rank=N too, or --local_rank=N as torch 1 did",
    group=Group.PROGRAM,
    kind=Kind.OPTIONAL,
    otherwise="no",
)
PYTHON = Option(
    "python",
    parse=values.path,
    default="",
    metavar="PATH",
    help="The interpreter that the workers run on",
    group=Group.PROGRAM,
    otherwise="PYTHON_EXEC if that is set, else the one that runs clusterrun",
    everyday=True,
)
ENV: Option[Mapping[str, str]] = Option(
    "env",
    parse=values.setting,
    default={},
    metavar="NAME=VALUE",
    help="Set a variable for the workers",
    group=Group.PROGRAM,
    kind=Kind.REPEATED,
    otherwise="none but what they inherit",
    everyday=True,
)
START_METHOD = Option(
    "start_method",
    parse=values.start_method,
    default=StartMethod.AUTO,
    metavar="auto|fork|spawn",
    help=(
        "Fork workers from a process that has imported torch and the like, or give each"
        " an interpreter of its own; auto forks where that is safe and faster"
    ),
    group=Group.STARTING,
)
PRELOAD: Option[str | tuple[str, ...]] = Option(
    "preload",
    parse=values.preload,
    default="auto",
    metavar="auto|all|none|MODULE,...",
    help=(
        "What is imported before workers are forked, of what the script imports first; auto: torch"
        " and other packages known to allow it; all: everything"
    ),
    group=Group.STARTING,
)
PRELOAD_TIMEOUT = Option(
    "preload_timeout",
    parse=values.seconds,
    default=60.0,
    metavar="SECONDS",
    help="The time for which that may stand still, before each worker does it itself",
    group=Group.STARTING,
)
NNODES = Option(
    "nnodes",
    parse=values.node_count,
    default=1,
    metavar="N|MIN:MAX",
    help="The number of nodes; of MIN:MAX, as many as have come at the last call",
    group=Group.WORKERS,
)
FEWEST_NODES = replace(NNODES, parse=values.fewest_nodes)
"""No row of its own: the other number that the same text says."""
NODE_RANK: Option[int | None] = Option(
    "node_rank",
    parse=values.node_rank,
    default=None,
    metavar="R",
    help="The rank of this node, from 0",
    group=Group.WORKERS,
    otherwise=(
        "what the cluster says, else 0 for the node that has the address given, the others by order"
        " of joining"
    ),
)
NPROC_PER_NODE: Option[int | WorkerCount] = Option(
    "nproc_per_node",
    parse=values.worker_count,
    default=WorkerCount.PER_GPU,
    metavar="N|auto|gpu|cpu",
    help="The number of workers on each node; auto means one per GPU, else one per CPU",
    group=Group.WORKERS,
    otherwise="one per visible GPU, else one",
)
NUMA_BINDING = Option(
    "numa_binding",
    parse=values.numa_binding,
    default=NumaBinding.AUTO,
    metavar="auto|node|near|socket|exclusive|core-complex|none",
    help=(
        "The CPUs that a worker may use: those near its GPU (the first four), those near it that no"
        " other worker has (the next two), or all"
    ),
    group=Group.PLACING,
)
NUMA_MEMORY = Option(
    "numa_memory",
    parse=values.numa_memory,
    default=NumaMemory.NONE,
    metavar="none|preferred|bind",
    help=(
        "The memory that a worker gets: wherever it is first used, the GPU's NUMA node first, or"
        " that alone"
    ),
    group=Group.PLACING,
)
NUMA_MAP: Option[tuple[MappedGpu, ...]] = Option(
    "numa_map",
    parse=numa_map,
    default=(),
    metavar="GPU=CPUS,...|FILE",
    help=(
        "Where GPUs are, if the machine's own tables are wrong: GPU=CPUS or GPU=node N, a GPU by"
        " index, PCI address or UUID; or a file of such lines"
    ),
    group=Group.PLACING,
    otherwise="the machine's own tables",
)
NUMA_STRICT = Option(
    "numa_strict",
    parse=values.switch,
    default=False,
    metavar="",
    help="Start nothing where a worker can't be bound as asked, instead of a remark",
    group=Group.PLACING,
    kind=Kind.FLAG,
)
GPUS_PER_WORKER: Option[int | None] = Option(
    "gpus_per_worker",
    parse=values.gpus_per_worker,
    default=None,
    metavar="K",
    help=(
        "The number of GPUs of each worker: worker r has the K from number r times K on; 0 if"
        " workers share GPUs, or use none"
    ),
    group=Group.PLACING,
    otherwise="one",
)
GPU_PER_RANK = Option(
    "gpu_per_rank",
    parse=values.switch,
    default=False,
    metavar="",
    help="Let each worker see its own GPUs alone, by its own CUDA_VISIBLE_DEVICES",
    group=Group.PLACING,
    kind=Kind.FLAG,
)
VIRTUAL_LOCAL_RANK = Option(
    "virtual_local_rank",
    parse=values.switch,
    default=False,
    metavar="",
    help="The same, with LOCAL_RANK 0 for every worker",
    group=Group.PLACING,
    kind=Kind.FLAG,
)
STDIN_RANK: Option[int | None] = Option(
    "stdin_rank",
    parse=values.rank,
    default=None,
    metavar="RANK",
    help="The one worker, by rank, that reads standard input",
    group=Group.PROGRAM,
    otherwise="on a terminal any worker may, else rank 0 alone",
)
ROLE = Option(
    "role",
    parse=torchrun_values.role,
    default="default",
    metavar="NAME",
    help="What the workers are called, their ROLE_NAME",
    group=Group.PROGRAM,
    everyday=True,
)
CLUSTER = Option(
    "cluster",
    parse=values.cluster,
    default="",
    metavar="NAME|none",
    help="The scheduler whose variables tell this process's place in the job; none reads nobody's",
    group=Group.WORKERS,
    otherwise="the one whose variables are there",
    everyday=True,
)
EXEC = Option(
    "exec",
    parse=values.switch,
    default=False,
    metavar="",
    help="Become the one worker instead of looking after it; for one task per GPU",
    group=Group.STARTING,
    kind=Kind.FLAG,
    everyday=True,
)
MASTER_ADDR: Option[str | None] = Option(
    "master_addr",
    parse=values.address,
    default=None,
    metavar="HOST",
    help="The address at which rank 0 listens, MASTER_ADDR of the workers",
    group=Group.MEETING,
    otherwise="127.0.0.1 on one node, else what the cluster says",
    everyday=True,
)
MASTER_PORT = Option(
    "master_port",
    parse=values.port,
    default=None,
    metavar="PORT",
    help="The port at which rank 0 listens, MASTER_PORT of the workers",
    group=Group.MEETING,
    otherwise="on one node a free port, chosen anew for each attempt, else the cluster's, or 29500",
    everyday=True,
)
LOCAL_ADDR: Option[str | None] = Option(
    "local_addr",
    parse=values.address,
    default=None,
    metavar="HOST",
    help="This node's own address: MASTER_ADDR where it is node 0 and nothing else says",
    group=Group.MEETING,
    aliases=("node_ip",),
    otherwise="found by itself",
)
RDZV_ENDPOINT: Option[str | None] = Option(
    "rdzv_endpoint",
    parse=values.endpoint,
    default=None,
    metavar="HOST[:PORT]",
    help="Where the nodes meet for the whole job; rank 0 then listens at another port",
    group=Group.MEETING,
    otherwise="at --master-addr and --master-port",
)
RDZV_TIMEOUT = Option(
    "rdzv_timeout",
    parse=values.seconds,
    default=600.0,
    metavar="SECONDS",
    help="The time that all nodes have to come",
    group=Group.JOINING,
)
LAST_CALL_TIMEOUT = Option(
    "last_call_timeout",
    parse=values.seconds,
    default=30.0,
    metavar="SECONDS",
    help="With --nnodes MIN:MAX, the time that others have to come once MIN nodes are there",
    group=Group.JOINING,
)
TOKEN_FILE = Option(
    "token_file",
    parse=values.path,
    default="",
    metavar="FILE",
    help="A file with a secret that all nodes must hold; CLUSTERRUN_TOKEN holds the secret itself",
    group=Group.JOINING,
    otherwise="of the scheduler's job, else none",
)
STRICT_JOIN = Option(
    "strict_join",
    parse=values.switch,
    default=False,
    metavar="",
    help="Refuse nodes whose script, arguments or versions differ, instead of a warning",
    group=Group.JOINING,
    kind=Kind.FLAG,
)
RUN_ID = Option(
    "run_id",
    parse=values.run_id,
    default="",
    metavar="ID",
    help="The name of this run, the same on all its nodes",
    group=Group.JOINING,
    aliases=("rdzv_id",),
    otherwise="chosen at the start",
    everyday=True,
)
MAX_RESTARTS = Option(
    "max_restarts",
    parse=values.restart_count,
    default=0,
    metavar="N",
    help="How often all workers are started again after one has failed",
    group=Group.FAILING,
)
NO_RESTART_EXIT_CODES: Option[tuple[int, ...]] = Option(
    "no_restart_exit_codes",
    parse=values.exit_codes,
    default=(),
    metavar="CODES",
    help="Exit codes after which nothing is started again, such as 3,5-7",
    group=Group.FAILING,
    otherwise="none",
)
NO_FAIL_FAST = Option(
    "no_fail_fast",
    parse=values.switch,
    default=False,
    metavar="",
    help="Start again even if the same rank has just failed twice with the same last line",
    group=Group.FAILING,
    kind=Kind.FLAG,
)
HEARTBEAT_TIMEOUT = Option(
    "heartbeat_timeout",
    parse=values.waiting_time,
    default=15.0,
    metavar="SECONDS",
    help="The time for which a node may be silent before it counts as lost",
    group=Group.FAILING,
)
HANG_TIMEOUT: Option[float | None] = Option(
    "hang_timeout",
    parse=values.seconds,
    default=None,
    metavar="SECONDS",
    help="Print the Python stacks of all ranks when none has printed or exited for so long",
    group=Group.FAILING,
    otherwise="nobody watches",
)
SHUTDOWN_TIMEOUT = Option(
    "shutdown_timeout",
    parse=values.seconds,
    default=25.0,
    metavar="SECONDS",
    help="The time that workers get to end after SIGTERM, before SIGKILL",
    group=Group.FAILING,
)
CONTAIN = Option(
    "contain",
    parse=values.switch,
    default=False,
    metavar="",
    help="Keep the job in a PID namespace: whatever is killed, the kernel ends the rest at once",
    group=Group.FAILING,
    kind=Kind.FLAG,
)
LOG_DIR: Option[str | None] = Option(
    "log_dir",
    parse=values.path,
    default=None,
    metavar="DIR",
    help="Write what each worker prints to files below this folder too",
    group=Group.LOGS,
    otherwise="no files, or those that are asked for in clusterrun-logs",
    everyday=True,
)
REDIRECTS: Option[StreamChoice | None] = Option(
    "redirects",
    parse=values.streams,
    default=None,
    metavar="N|LOCALRANK:N,...",
    help=(
        "Write standard output (1), standard error (2) or both (3) of all workers or of those named"
        " to their log files only"
    ),
    group=Group.LOGS,
    short="r",
    otherwise="none",
)
TEE: Option[StreamChoice | None] = Option(
    "tee",
    parse=values.streams,
    default=None,
    metavar="N|LOCALRANK:N,...",
    help="Print them and, with a --log-dir, write them to log files",
    group=Group.LOGS,
    short="t",
    otherwise="all, if there is a --log-dir and nothing is redirected",
)
LOCAL_RANKS_FILTER: Option[RankSet | None] = Option(
    "local_ranks_filter",
    parse=values.ranks,
    default=None,
    metavar="RANKS",
    help="Print only the lines of these local ranks of each node, such as 0,2-3",
    group=Group.OUTPUT,
    otherwise="all",
)
RANKS: Option[RankSet | None] = Option(
    "ranks",
    parse=values.ranks,
    default=None,
    metavar="RANKS",
    help="Print only the lines of these ranks of the whole job, such as 0,8-15",
    group=Group.OUTPUT,
    otherwise="all",
)
LOG_LINE_PREFIX_TEMPLATE: Option[str | None] = Option(
    "log_line_prefix_template",
    parse=values.line_prefix,
    default=None,
    metavar="TEXT",
    help=(
        "What stands before a worker's lines; ${rank}, ${local_rank}, ${role_name}, ${host} and"
        " ${node_rank} in it are filled in"
    ),
    group=Group.OUTPUT,
    otherwise="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE if that is set, else [rank R]",
)
PROGRESS_INTERVAL = Option(
    "progress_interval",
    parse=values.seconds,
    default=10.0,
    metavar="SECONDS",
    help="How often a progress bar in a pipe or a file is printed; 0: at its end",
    group=Group.OUTPUT,
)
DUPLICATE_STDOUT_FILTERS: Option[tuple[str, ...]] = Option(
    "duplicate_stdout_filters",
    parse=values.line_filters,
    default=(),
    metavar="TEXT,...",
    help="Write printed lines of standard output that contain a TEXT to filtered_stdout.log, too",
    group=Group.OUTPUT,
    otherwise="none",
)
DUPLICATE_STDERR_FILTERS: Option[tuple[str, ...]] = Option(
    "duplicate_stderr_filters",
    parse=values.line_filters,
    default=(),
    metavar="TEXT,...",
    help="The same for standard error and filtered_stderr.log",
    group=Group.OUTPUT,
    otherwise="none",
)
WORKERLOG = Option(
    "workerlog",
    parse=values.switch,
    default=False,
    metavar="",
    help="One log file for both streams of a worker, and DIR/workerlog.N is that of local rank N",
    group=Group.LOGS,
    kind=Kind.FLAG,
)
EVENTS: Option[str | None] = Option(
    "events",
    parse=values.path,
    default=None,
    metavar="FILE",
    help=(
        "Append a line of JSON to this file for each thing that happens to the job; %n in its name"
        " stands for the node's rank"
    ),
    group=Group.LOGS,
    otherwise="no file",
)
VERBOSE = Option(
    "verbose",
    parse=values.switch,
    default=False,
    metavar="",
    help="Say more of what is done and why",
    group=Group.OUTPUT,
    kind=Kind.FLAG,
    short="v",
    everyday=True,
)
CONFIG = Option(
    "config",
    parse=values.path,
    default="",
    metavar="FILE",
    help="A job file in YAML; flags and variables beat what it says",
    group=Group.LAUNCHER,
    otherwise="none",
    everyday=True,
    in_file=False,
)
DRY_RUN = Option(
    "dry_run",
    parse=values.switch,
    default=False,
    metavar="",
    help="Print each value with its origin and each worker with its place, and start nothing",
    group=Group.LAUNCHER,
    kind=Kind.FLAG,
    everyday=True,
)
JSON = Option(
    "json",
    parse=values.switch,
    default=False,
    metavar="",
    help="Print what --dry-run or clusterrun topo prints as JSON",
    group=Group.LAUNCHER,
    kind=Kind.FLAG,
    everyday=True,
)
MACHINE_ROOT: Option[Path | None] = Option(
    "machine_root",
    parse=values.captured_machine,
    default=None,
    metavar="DIR|FILE",
    help=(
        "Plan for, or draw, the machine that was captured in this folder or archive, with --dry-run"
        " or clusterrun topo"
    ),
    group=Group.LAUNCHER,
    otherwise="this machine",
)
ALLOWED_CPUS: Option[CpuSet | None] = Option(
    "allowed_cpus",
    parse=values.cpu_list,
    default=None,
    metavar="LIST",
    help="With --machine-root, the CPUs that a job may use there",
    group=Group.LAUNCHER,
    otherwise="those that the captured process might",
)
CAPTURE: Option[Path | None] = Option(
    "capture",
    parse=values.new_archive,
    default=None,
    metavar="FILE",
    help="Write what was read of this machine to this .tar.xz or .tar.gz, with clusterrun topo",
    group=Group.LAUNCHER,
    otherwise="no file",
    in_file=False,
)
OPTIONS: tuple[Option[object], ...] = (
    MODULE,
    NO_PYTHON,
    RUN_PATH,
    PASS_LOCAL_RANK,
    STDIN_RANK,
    ROLE,
    PYTHON,
    ENV,
    START_METHOD,
    PRELOAD,
    PRELOAD_TIMEOUT,
    EXEC,
    NNODES,
    NODE_RANK,
    NPROC_PER_NODE,
    host_rows.HOSTS,
    host_rows.HOSTFILE,
    CLUSTER,
    paddle_rows.USE_PADDLECLOUD,
    host_rows.DEVICES,
    NUMA_BINDING,
    NUMA_MEMORY,
    NUMA_MAP,
    NUMA_STRICT,
    GPUS_PER_WORKER,
    GPU_PER_RANK,
    VIRTUAL_LOCAL_RANK,
    MASTER_ADDR,
    MASTER_PORT,
    LOCAL_ADDR,
    paddle_rows.BASE_PORT,
    RDZV_ENDPOINT,
    RDZV_TIMEOUT,
    LAST_CALL_TIMEOUT,
    TOKEN_FILE,
    STRICT_JOIN,
    RUN_ID,
    MAX_RESTARTS,
    NO_RESTART_EXIT_CODES,
    NO_FAIL_FAST,
    HEARTBEAT_TIMEOUT,
    HANG_TIMEOUT,
    SHUTDOWN_TIMEOUT,
    CONTAIN,
    LOCAL_RANKS_FILTER,
    RANKS,
    LOG_LINE_PREFIX_TEMPLATE,
    PROGRESS_INTERVAL,
    DUPLICATE_STDOUT_FILTERS,
    DUPLICATE_STDERR_FILTERS,
    VERBOSE,
    LOG_DIR,
    REDIRECTS,
    TEE,
    WORKERLOG,
    EVENTS,
    *TORCHRUN_OPTIONS,
    CONFIG,
    DRY_RUN,
    JSON,
    MACHINE_ROOT,
    ALLOWED_CPUS,
    CAPTURE,
)
"""The table, in the order of --help."""
