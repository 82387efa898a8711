"""The options of a job and its launch, each a field of its subject.

The name of a subject is its topic in ``--help failures``; its title is the heading there.
"""

from enum import Enum
from typing import Annotated, ClassVar

from msgspec import Struct

from clusterrun.errors import ExitCode
from clusterrun.job import values
from clusterrun.job.declarations import Option, by_any_name, rows_of
from clusterrun.job.values import WorkerCount, choice, number

DEFAULT_BASE_PORT = 6170
"""Paddle's default (python/paddle/distributed/cloud_utils.py)."""

DEFAULT_LOGS_SPECS = "default"
"""The name of torch's own entry point in the group ``torchrun.logs_specs``."""


class StartMethod(Enum):
    """How workers start."""

    AUTO = "auto"
    """``FORK`` if that is safe, else ``SPAWN``."""

    FORK = "fork"
    """Workers are forked from the fork server, which has made the script's first imports."""

    SPAWN = "spawn"
    """Each worker is a new interpreter."""


class NumaBinding(Enum):
    """Which CPUs a worker may use, relative to the NUMA node of its GPU."""

    AUTO = "auto"
    """The default, the same as ``near``."""

    NODE = "node"
    """All CPUs of the GPU's NUMA node, shared by the workers of that node."""

    NEAR = "near"
    """As ``node``, plus NUMA nodes of the same socket that have no worker's GPU."""

    SOCKET = "socket"
    """All CPUs of the GPU's socket."""

    EXCLUSIVE = "exclusive"
    """Whole cores of the GPU's NUMA node, for this worker only."""

    CORE_COMPLEX = "core-complex"
    """As ``exclusive``, in units of cores that share an L3 cache."""

    NONE = "none"
    """All CPUs that the launcher may use."""

    @property
    def divides(self) -> bool:
        """Whether no two workers share a CPU."""
        return self in {NumaBinding.EXCLUSIVE, NumaBinding.CORE_COMPLEX}


class NumaMemory(Enum):
    """Where the memory of a bound worker is allocated."""

    NONE = "none"
    """The kernel's default: on the NUMA node of the CPU that first uses it."""

    PREFERRED = "preferred"
    """The NUMA nodes of its GPUs first, then others."""

    BIND = "bind"
    """Only the NUMA nodes of its GPUs and CPUs; if they are full, the OOM killer acts."""


class NodeLauncher(Enum):
    """What starts the agents of a job's nodes."""

    NONE = "none"
    """A person or a scheduler; this command is the agent of one node."""

    SSH = "ssh"
    """This command, with ssh to each host."""


class OnFailure(Enum):
    """What happens if a worker of a service fails."""

    STOP = "stop"
    """The job ends."""

    RESTART = "restart"
    """Only that worker is restarted."""

    IGNORE = "ignore"
    """A notice is printed."""


class OnHang(Enum):
    """What happens if no worker has printed or exited for ``hang_timeout``."""

    REPORT = "report"
    """The stacks of all ranks are printed."""

    RESTART = "restart"
    """The stacks are printed and all workers are restarted."""

    STOP = "stop"
    """The stacks are printed and the job ends."""


class Program(Struct, frozen=True):
    title: ClassVar = "What the workers run"

    module: Annotated[
        bool,
        Option(
            "SCRIPT is the name of a Python module, run as by python -m",
            short="m",
            common_in_scripts=True,
        ),
    ] = False
    no_python: Annotated[
        bool, Option("SCRIPT is a program of any kind, found on PATH and run without Python")
    ] = False
    run_path: Annotated[
        bool,
        Option("SCRIPT is a file, folder or archive, run by runpy.run_path in the current folder"),
    ] = False
    pass_local_rank: Annotated[
        values.LocalRankArgument,
        Option(
            "Pass --local-rank=N to the script, or --local_rank=N as torch 1 did",
            default="no",
            quiet=True,
        ),
    ] = ""
    role: Annotated[
        values.Role,
        Option("The role of the workers, their ROLE_NAME", common_in_scripts=True, quiet=True),
    ] = "default"
    python: Annotated[
        values.FilePath,
        Option(
            "The interpreter that runs the workers",
            metavar="PATH",
            default="PYTHON_EXEC if set, else clusterrun's own, or the active environment's if only"
            " that has torch",
            common_in_scripts=True,
        ),
    ] = ""
    env: Annotated[
        values.Variables,
        Option(
            "Set a variable for the workers; may be repeated",
            default="none",
            common_in_scripts=True,
        ),
    ] = ()


class Starting(Struct, frozen=True):
    title: ClassVar = "How workers start"

    start_method: Annotated[
        StartMethod,
        # torchrun's forkserver is what auto does where forking is safe.
        choice(StartMethod, "a start method", {"forkserver": StartMethod.AUTO}),
        Option(
            "Fork workers from one process that has imported torch, or spawn an interpreter for"
            " each; auto: fork where that is safe and faster"
        ),
    ] = StartMethod.AUTO
    preload: Annotated[
        values.Preload,
        Option(
            "What to import once, before workers are forked: those of the script's first imports"
            " that are known to be safe (auto), none, or these modules"
        ),
    ] = "auto"
    exec: Annotated[
        bool,
        Option(
            "Replace this process by its one worker; for schedulers that start a task for each GPU",
            common_in_scripts=True,
        ),
    ] = False


class Workers(Struct, frozen=True):
    title: ClassVar = "How many workers, and where"

    nnodes: Annotated[
        values.Nodes,
        Option("Number of nodes; with MIN:MAX, from MIN to MAX, as many as join in time"),
    ] = values.NodeRange(1, 1)
    node_rank: Annotated[
        values.RankOfNode,
        Option(
            "The rank of this node, from 0",
            default="the cluster's; else 0 on the node that has the given address, others in the"
            " order of joining",
        ),
    ] = None
    nproc_per_node: Annotated[
        values.Workers,
        Option(
            "Number of workers on each node; auto: one per GPU, or one per CPU if there are no GPUs",
            default="one per visible GPU, or one",
        ),
    ] = WorkerCount.PER_GPU
    hosts: Annotated[
        values.Hosts,
        Option(
            "The nodes in the order of their ranks, such as a,b[1-3]; each node finds itself in the"
            " list",
            aliases=("cluster_node_ips",),
            default="the cluster's",
            quiet=True,
        ),
    ] = ()
    hostfile: Annotated[
        values.FilePath,
        Option(
            "The same from a file, with HOST, HOST slots=N or HOST:N on each line",
            default="none",
            quiet=True,
        ),
    ] = ""
    cluster: Annotated[
        values.Name,  # checked where clusters are detected
        Option(
            "The scheduler whose variables give the nodes and ranks; none: ignore all of them;"
            " MODULE:FUNCTION: call your own function",
            metavar="NAME|none|MODULE:FUNCTION",
            default="the one whose variables are set",
            common_in_scripts=True,
        ),
    ] = ""
    use_paddlecloud: Annotated[bool, Option("The same as --cluster paddle", quiet=True)] = False
    devices: Annotated[
        values.Devices,
        Option(
            "The GPUs for the workers, in this order, by number or UUID",
            aliases=("selected_gpus",),
            default="all visible GPUs",
            quiet=True,
        ),
    ] = ()


class Placing(Struct, frozen=True):
    title: ClassVar = "Which CPUs and GPUs a worker gets"

    numa_binding: Annotated[
        NumaBinding,
        choice(NumaBinding, "a NUMA binding"),
        Option(
            "The CPUs of each worker: those near its GPU (node, near, socket), those near it that no"
            " other worker has (exclusive, core-complex), or all (none); auto: near"
        ),
    ] = NumaBinding.AUTO
    numa_memory: Annotated[
        NumaMemory,
        choice(NumaMemory, "a memory policy"),
        Option(
            "Where each worker's memory is allocated: where first touched (none), preferably on"
            " its GPU's NUMA node (preferred), or only there (bind)",
            quiet=True,
        ),
    ] = NumaMemory.NONE
    numa_map: Annotated[
        values.NumaMap,
        Option(
            "The CPUs or NUMA node near each GPU, if the machine reports them wrong: GPU=CPUS or"
            " GPU=node N, a GPU by index, PCI address or UUID; or a file of such lines",
            default="what the machine reports",
            quiet=True,
        ),
    ] = ()
    numa_strict: Annotated[
        bool,
        Option(
            "Refuse to start if a worker can't be bound as requested, instead of only warning",
            quiet=True,
        ),
    ] = False
    gpus_per_worker: Annotated[
        int | None,
        number(
            "a number of GPUs",
            metavar="K",
            hint="give a number; 0 if workers share GPUs, or use none",
        ),
        Option(
            "Number of GPUs of each worker: local rank r gets the K GPUs from index r*K; 0: workers"
            " share GPUs, or use none",
            default="one",
            quiet=True,
        ),
    ] = None
    virtual_local_rank: Annotated[
        bool,
        Option(
            "Show each worker only its own GPUs, as if it were alone: LOCAL_RANK is 0", quiet=True
        ),
    ] = False


class Ssh(Struct, frozen=True):
    title: ClassVar = "How other hosts are reached"

    launcher: Annotated[
        NodeLauncher,
        choice(NodeLauncher, "a launcher of nodes"),
        Option(
            "What starts the agents of a job: none: each is started by hand or by a scheduler; ssh:"
            " this command, by ssh on each host of --hosts or --hostfile",
            common_in_scripts=True,
        ),
    ] = NodeLauncher.NONE
    ssh_options: Annotated[
        values.SshOptions,
        Option(
            "Options for ssh, quoted as for a shell: '-p 2222 -J gate'; options in ssh_config also"
            " apply",
            default="none",
        ),
    ] = ()


class Rendezvous(Struct, frozen=True):
    title: ClassVar = "How nodes find each other"

    master_addr: Annotated[
        values.Address,
        Option(
            "The address where rank 0 listens, MASTER_ADDR of the workers",
            default="127.0.0.1 on one node, else the cluster's",
            common_in_scripts=True,
        ),
    ] = None
    master_port: Annotated[
        values.Port,
        Option(
            "The port where rank 0 listens, MASTER_PORT of the workers",
            default="on one node a free port for each attempt, else the cluster's, or 29500",
            common_in_scripts=True,
        ),
    ] = None
    local_addr: Annotated[
        values.Address,
        Option(
            "This node's own address; if it is the rendezvous endpoint, this is node 0",
            aliases=("node_ip",),
            default="found by clusterrun",
            quiet=True,
        ),
    ] = None
    base_port: Annotated[
        int,
        number("a port", 1, 64_999, "PORT"),
        Option(
            "With --cluster paddle, the first port of a node's workers in PADDLE_ variables",
            aliases=("started_port",),
            quiet=True,
        ),
    ] = DEFAULT_BASE_PORT
    rdzv_endpoint: Annotated[
        values.EndpointText,
        Option(
            "The rendezvous endpoint, for the whole job; MASTER_PORT is then a different port",
            default="at --master-addr and --master-port",
        ),
    ] = None


class Join(Struct, frozen=True):
    title: ClassVar = "How nodes become one job"

    rdzv_timeout: Annotated[values.Seconds, Option("How long to wait for all nodes to join")] = (
        600.0
    )
    last_call_timeout: Annotated[
        values.Seconds,
        Option(
            "With --nnodes MIN:MAX, how long to wait for more nodes after MIN have joined",
            quiet=True,
        ),
    ] = 30.0
    check: Annotated[
        values.ShellCommand,
        Option(
            "A shell command that each node runs before it joins; if it fails, the node does not join",
            default="none",
            needs_agent=True,
            quiet=True,
        ),
    ] = ""
    token_file: Annotated[
        values.FilePath,
        Option(
            "A file with a secret that all nodes must share; or set the secret itself in"
            " CLUSTERRUN_TOKEN",
            default="made from the scheduler's job, else none",
            quiet=True,
        ),
    ] = ""
    run_id: Annotated[
        values.RunId,
        Option(
            "The name of this run, the same on all nodes",
            aliases=("rdzv_id",),
            default="chosen at the start",
            common_in_scripts=True,
        ),
    ] = ""


class Failures(Struct, frozen=True):
    title: ClassVar = "When a worker fails"

    max_restarts: Annotated[
        int,
        number("a number of restarts"),
        Option(
            "How many times to start all workers again after one has failed",
            same_on_all_nodes=True,
            needs_agent=True,
        ),
    ] = 0
    no_restart_exit_codes: Annotated[
        values.ExitCodes,
        Option(
            "Exit codes of a worker after which the job is not restarted, such as 3,5-7",
            default="none",
            same_on_all_nodes=True,
        ),
    ] = ()
    no_fail_fast: Annotated[
        bool,
        Option(
            "Restart even if the same rank failed twice in a row with the same last line",
            same_on_all_nodes=True,
        ),
    ] = False
    heartbeat_timeout: Annotated[
        values.HeartbeatTimeout,
        Option("How long a node may be silent before it counts as lost", same_on_all_nodes=True),
    ] = 15.0
    hang_timeout: Annotated[
        float | None,
        values.SECONDS,
        Option(
            "Print the Python stacks of all ranks if none has printed or exited for this long",
            default="never",
            same_on_all_nodes=True,
            needs_agent=True,
        ),
    ] = None
    on_hang: Annotated[
        OnHang,
        choice(OnHang, "a way to act on a hang"),
        Option(
            "After --hang-timeout only report the hang, restart all workers, or stop the job",
            same_on_all_nodes=True,
            quiet=True,
        ),
    ] = OnHang.REPORT
    shutdown_timeout: Annotated[
        values.Seconds,
        Option(
            "How long workers may take to exit after SIGTERM, and leftover processes after success",
            default="TORCH_ELASTIC_SHUTDOWN_TIMEOUT if set, else 25",
        ),
    ] = 25.0
    pdb: Annotated[
        bool,
        Option(
            "Open pdb on the terminal, at the exception of the first rank that fails",
            common_in_scripts=True,
            needs_agent=True,
            quiet=True,
        ),
    ] = False


class Elasticity(Struct, frozen=True):
    title: ClassVar = "When a node is lost"

    spares: Annotated[
        int,
        number("a number of nodes"),
        Option(
            "Number of nodes beyond --nnodes that wait to take the places of lost ones",
            same_on_all_nodes=True,
            needs_agent=True,
            quiet=True,
        ),
    ] = 0
    rejoin_timeout: Annotated[
        values.Seconds,
        Option(
            "How long a job that has lost a node waits for another one to take its place",
            same_on_all_nodes=True,
            needs_agent=True,
            quiet=True,
        ),
    ] = 0.0


class Suspending(Struct, frozen=True):
    title: ClassVar = "How a job is suspended"

    suspend_signal: Annotated[
        values.SignalNumber,
        Option(
            "A signal to any agent, such as USR1, after which all ranks save at one step and end",
            default="none; SIGTERM has the same effect if the script calls suspend.requested()",
            needs_agent=True,
        ),
    ] = None
    suspend_grace: Annotated[
        values.Seconds,
        Option(
            "How long all ranks may take to reach the agreed step and to save", needs_agent=True
        ),
    ] = 30.0
    suspend_exit_code: Annotated[
        int,
        number("the exit code of a failure", 1, 255, "CODE"),
        Option("The exit code once all ranks have saved, for the scheduler", needs_agent=True),
    ] = int(ExitCode.SUSPENDED)
    suspend_before: Annotated[
        float | None,
        values.SECONDS,
        Option(
            "Suspend the job this long before its time limit in Slurm, PBS, LSF or Flux",
            default="never",
            needs_agent=True,
            quiet=True,
        ),
    ] = None
    suspend_hook: Annotated[
        values.Command,
        Option(
            "Suspend the job once COMMAND, run on node 0, exits with 0; once all ranks have saved,"
            " run COMMAND ready",
            default="none",
            needs_agent=True,
            quiet=True,
        ),
    ] = ()
    requeue: Annotated[
        bool,
        Option(
            "After a suspension, have Slurm, PBS, LSF or Flux put the job back into its queue",
            needs_agent=True,
            quiet=True,
        ),
    ] = False


class Output(Struct, frozen=True):
    title: ClassVar = "What is printed"

    local_ranks_filter: Annotated[
        values.Ranks,
        Option(
            "Print only the lines of these local ranks of each node, such as 0,2-3",
            default="all",
            needs_agent=True,
        ),
    ] = None
    ranks: Annotated[
        values.Ranks,
        Option(
            "Print only the lines of these ranks of the whole job, such as 0,8-15",
            default="all",
            needs_agent=True,
        ),
    ] = None
    log_line_prefix_template: Annotated[
        values.LinePrefix,
        Option(
            "What to print before each line of a worker, with ${rank}, ${local_rank}, ${role_name},"
            " ${host} (without its domain), ${hostname} and ${node_rank} filled in",
            default="TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE if set, else [rank R]",
            needs_agent=True,
        ),
    ] = None
    duplicate_stdout_filters: Annotated[
        values.LineFilters,
        Option(
            "Also write printed lines of standard output that contain a TEXT to"
            " filtered_stdout.log",
            default="none",
            needs_agent=True,
        ),
    ] = ()
    duplicate_stderr_filters: Annotated[
        values.LineFilters,
        Option(
            "The same for standard error and filtered_stderr.log", default="none", needs_agent=True
        ),
    ] = ()
    verbose: Annotated[
        bool,
        Option("Print more of what is done and why", short="v", common_in_scripts=True, quiet=True),
    ] = False


class Files(Struct, frozen=True):
    title: ClassVar = "What is written to files"

    log_dir: Annotated[
        values.FolderPath,
        Option(
            "Also write what each worker prints to files in this folder",
            default="no files; clusterrun-logs if another option asks for files",
            common_in_scripts=True,
            needs_agent=True,
        ),
    ] = None
    redirects: Annotated[
        values.Streams,
        Option(
            "Write standard output (1), standard error (2) or both (3) of all workers, or of those"
            " named, only to their log files",
            short="r",
            default="none",
            needs_agent=True,
        ),
    ] = None
    tee: Annotated[
        values.Streams,
        Option(
            "Print these streams and, with --log-dir, also write them to log files",
            short="t",
            default="all streams, if --log-dir is given and nothing is redirected",
            needs_agent=True,
        ),
    ] = None
    events: Annotated[
        values.NewFile,
        Option(
            "Append a line of JSON to this file for each event of the job; %n in its name is the"
            " node's rank",
            default="no file",
            needs_agent=True,
        ),
    ] = None


class Torchrun(Struct, frozen=True):
    title: ClassVar = "Options for torchrun's command lines"

    standalone: Annotated[
        bool, Option("Run on this node alone, whatever the cluster or --rdzv-endpoint says")
    ] = False
    rdzv_backend: Annotated[
        values.Backend,
        Option(
            "With static, --rdzv-endpoint is MASTER_ADDR and MASTER_PORT; with c10d, node ranks"
            " follow the order of joining",
            default="neither",
        ),
    ] = ""
    rdzv_conf: Annotated[
        values.Configuration,
        Option("Only join_timeout, timeout and last_call_timeout are read", default="none"),
    ] = ()
    signals_to_handle: Annotated[
        values.SignalNames,
        Option(
            "TORCHELASTIC_SIGNALS_TO_HANDLE of the workers; clusterrun itself handles all signals",
            quiet=True,
        ),
    ] = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    use_env: Annotated[
        bool, Option("Give the local rank only as LOCAL_RANK, which is the default")
    ] = False
    monitor_interval: Annotated[
        values.Seconds, Option("No effect: clusterrun learns of each exit at once")
    ] = 0.1
    event_log_handler: Annotated[
        values.Plugin, Option("No effect: --events writes the events of a job to a file")
    ] = "null"
    logs_specs: Annotated[
        values.Plugin,
        Option(
            "Not supported: --log-dir sets where logs go, and no plugins are loaded",
            default="none",
        ),
    ] = ""


class Launcher(Struct, frozen=True):
    title: ClassVar = "clusterrun itself"

    config: Annotated[
        values.FilePath,
        Option(
            "A job file in YAML; flags and environment variables override its values",
            default="none",
            common_in_scripts=True,
        ),
    ] = ""
    dry_run: Annotated[
        bool,
        Option(
            "Print where each value was set and where each worker would run, and start nothing",
            common_in_scripts=True,
        ),
    ] = False
    json: Annotated[
        bool,
        Option(
            "Print JSON, with --dry-run or a command such as topo or status",
            common_in_scripts=True,
        ),
    ] = False
    machine_root: Annotated[
        values.CapturedMachine,
        Option(
            "Plan for the machine captured in this file or folder, with --dry-run or clusterrun"
            " topo",
            default="this machine",
        ),
    ] = None


SUBJECTS: tuple[type[Struct], ...] = (
    *(Program, Starting, Workers, Placing, Ssh, Rendezvous, Join, Failures, Elasticity),
    *(Suspending, Output, Files, Torchrun, Launcher),
)
"""In the order of --help."""

OPTIONS = rows_of(*SUBJECTS)
NAMES = by_any_name(OPTIONS)
