"""Options and commands of clusterrun 0.1, and what to type instead; to be removed after 0.2."""

KUBERNETES = "edit configs/kubernetes/jobset.yaml or trainjob.yaml: docs/slurm.md"

SUBMIT_SECTION = (
    "type its keys as options of clusterrun submit, such as --time 2:00:00; other options of sbatch"
    " as --directive=--mail-type=END"
)

JOINING_NODES = (
    "leave it out: a node that joins while the job runs is let in when all workers restart"
)

REMOVED_OPTIONS = {
    "allowed_cpus": "leave it out: a captured machine has the CPUs of the process that captured it",
    "capture": "type clusterrun topo --capture FILE",
    "check_nodes": "type --check 'clusterrun doctor --this-machine'",
    "contain": "run the job in a container, or put systemd-run --user --scope before clusterrun",
    "debug": (
        "to debug all ranks, type python -m debugpy --listen 5678 --wait-for-client -m clusterrun;"
        " for one, call torch.distributed.breakpoint(RANK) in the script"
    ),
    "elastic_join": JOINING_NODES,
    "elastic_join_delay": JOINING_NODES,
    "elastic_multiple": "leave it out: all nodes that join are used, up to MAX",
    "exclude_after": (
        "type --check COMMAND: the node whose rank failed first runs it before the next"
        " attempt; if it fails, the node leaves the job"
    ),
    "gpu_per_rank": "type --virtual-local-rank: each worker sees its own GPU alone, as cuda:0",
    "flux": "edit configs/schedulers/flux.sh: docs/slurm.md",
    "keep_warm": (
        "leave it out: each launch imports once for all of its workers; clusterrun.Workers calls"
        " functions one after the other"
    ),
    "kubernetes": KUBERNETES,
    "live": "type watch clusterrun status on another terminal",
    "lsf": "edit configs/schedulers/lsf.sh: docs/slurm.md",
    "max_node_losses": "leave it out: --max-restarts limits the failures of workers",
    "no_failover": "leave it out: the loss of node 0 ends every job, with exit code 5",
    "pbs": "edit configs/schedulers/pbs.sh: docs/slurm.md",
    "preload_timeout": (
        "leave it out: an import that hangs for 60 s is left to each worker, and with"
        " --preload none every import is"
    ),
    "profile": "use torch.profiler in the script: its schedule records some steps",
    "progress_interval": "leave it out: a progress bar written to a pipe or file becomes one line every 10 s",
    "slurm": SUBMIT_SECTION,
    "ssh_parallel": "leave it out: ssh opens 10 connections at a time",
    "ssh_timeout": (
        "leave it out: each host has 30 s to answer; for ssh's own limit,"
        " --ssh-options '-o ConnectTimeout=SECONDS'"
    ),
    "stdin_rank": "leave it out: rank 0 reads standard input, and on a terminal each rank can",
    "strict_join": "leave it out: a node that differs is named in a warning",
    "submit": SUBMIT_SECTION,
    "warm": "leave it out: no process stays after its job",
    "workerlog": "type --cluster paddle --log-dir DIR, which has it",
}
"""What to type instead of an option or a section of a job file, by its name in snake_case."""

REMOVED_COMMANDS = {
    "cancel": "type scancel ID, or what your scheduler has: bkill, qdel, flux cancel, kubectl delete",
    "logs": (
        "start the job with --log-dir DIR, and type tail -f DIR/latest/*/*/rank-*; for a job of"
        " Slurm, tail -f slurm-ID.out"
    ),
    "watch": "type watch clusterrun status",
}
"""What to type instead of a command; a file with its name can still be run as SCRIPT."""

REMOVED_SUBMIT_OPTIONS = {
    **{
        name: f"type --directive=--{name}=VALUE, as sbatch has it"
        for name in ("array", "dependency", "error", "output", "signal")
    },
    **dict.fromkeys(
        ("claims", "gpu_resource", "kind", "namespace", "node_selector", "secrets", "tolerations"),
        KUBERNETES,
    ),
    "container": (
        "leave it out: apptainer starts an image that ends in .sif or begins with a scheme such as"
        " docker://, pyxis any other"
    ),
    "groups": "write a script with hetjob by hand: docs/slurm.md has one",
    "modules": "type --setup 'module load NAME'",
    "quiet": "leave it out: standard output has the job's number alone",
    "save": "type (umask 077; clusterrun submit --print ... > FILE)",
    "to": (
        "leave it out: submit is for Slurm; for LSF, PBS, Flux and Kubernetes edit a file of configs:"
        " docs/slurm.md"
    ),
    "wait": "type --follow > /dev/null",
}
"""What to type instead of an option of ``clusterrun submit``, by its name in snake_case."""
