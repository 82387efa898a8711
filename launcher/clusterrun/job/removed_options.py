"""Options and commands of clusterrun 0.1, and what to type instead; to be removed after 0.2."""

KUBERNETES = "edit configs/kubernetes/jobset.yaml or trainjob.yaml: docs/slurm.md"

SUBMIT_SECTION = (
    "set its keys with options of clusterrun submit, such as --time 2:00:00; other options of"
    " sbatch as --directive=--mail-type=END"
)

JOINING_NODES = "remove it: a node that joins while the job runs is let in when all workers restart"

REMOVED_OPTIONS = {
    "allowed_cpus": "remove it: a captured machine has the CPUs of the process that captured it",
    "capture": "run clusterrun topo --capture FILE",
    "check_nodes": "use --check 'clusterrun doctor --this-machine'",
    "contain": "run the job in a container, or put systemd-run --user --scope before clusterrun",
    "debug": (
        "to debug all ranks, run python -m debugpy --listen 5678 --wait-for-client -m clusterrun;"
        " for one, call torch.distributed.breakpoint(RANK) in the script;"
        " accelerate's --debug is --env ACCELERATE_DEBUG_MODE=true"
    ),
    "elastic_join": JOINING_NODES,
    "elastic_join_delay": JOINING_NODES,
    "elastic_multiple": "remove it: all nodes that join are used, up to MAX",
    "exclude_after": (
        "use --check COMMAND: the node whose rank failed first runs it before the next attempt; if"
        " it fails, the node leaves the job"
    ),
    "gpu_per_rank": "use --virtual-local-rank: each worker sees its own GPU alone, as cuda:0",
    "flux": "edit configs/schedulers/flux.sh: docs/slurm.md",
    "keep_warm": (
        "remove it: each launch imports once for all of its workers; clusterrun.Workers calls"
        " functions one after the other"
    ),
    "kubernetes": KUBERNETES,
    "live": "run watch clusterrun status in another terminal",
    "lsf": "edit configs/schedulers/lsf.sh: docs/slurm.md",
    "max_node_losses": "remove it: --max-restarts limits the failures of workers",
    "no_failover": "remove it: the loss of node 0 ends every job, with exit code 5",
    "pbs": "edit configs/schedulers/pbs.sh: docs/slurm.md",
    "preload_timeout": (
        "remove it: if an import hangs for 60 s, each worker imports its modules itself, as with"
        " --preload none"
    ),
    "profile": "use torch.profiler in the script: its schedule records some steps",
    "progress_interval": (
        "remove it: a progress bar written to a pipe or file becomes one line every 10 s"
    ),
    "slurm": f"{SUBMIT_SECTION}; instead of groups, write a script with hetjob: docs/slurm.md",
    "ssh_parallel": "remove it: ssh opens 10 connections at a time",
    "ssh_timeout": (
        "remove it: each host has 30 s to answer; for ssh's own limit, --ssh-options '-o"
        " ConnectTimeout=SECONDS'"
    ),
    "stdin_rank": "remove it: rank 0 reads standard input, and on a terminal each rank can",
    "strict_join": "remove it: a warning names each node that differs",
    "submit": SUBMIT_SECTION,
    "warm": "remove it: no process stays after its job",
    "workerlog": "use --cluster paddle --log-dir DIR, which includes it",
}
"""What to type instead of an option or a section of a job file, by its name in snake_case."""

REMOVED_COMMANDS = {
    "cancel": (
        "run scancel ID, or your scheduler's equivalent: bkill, qdel, flux cancel, kubectl delete"
    ),
    "logs": (
        "start the job with --log-dir DIR, and run tail -f DIR/latest/*/*/rank-*; for a job of"
        " Slurm, tail -f slurm-ID.out"
    ),
    "watch": "run watch clusterrun status",
}
"""What to type instead of a command; a file with its name can still be run as SCRIPT."""

REMOVED_SUBMIT_OPTIONS = {
    **{
        name: f"use --directive=--{name}=VALUE, which is passed to sbatch"
        for name in ("array", "dependency", "error", "output", "signal")
    },
    **dict.fromkeys(
        ("claims", "gpu_resource", "kind", "namespace", "node_selector", "secrets", "tolerations"),
        KUBERNETES,
    ),
    "container": (
        "remove it: apptainer starts an image that ends in .sif or begins with a scheme such as"
        " docker://, pyxis any other"
    ),
    "groups": "write a script with hetjob by hand: docs/slurm.md has one",
    "modules": "use --setup 'module load NAME'",
    "quiet": "remove it: only the job ID is printed to standard output",
    "save": "run (umask 077; clusterrun submit --print ... > FILE)",
    "to": (
        "remove it: submit is for Slurm only; for LSF, PBS, Flux and Kubernetes edit a file in configs"
        " (see docs/slurm.md)"
    ),
    "wait": "use --follow > /dev/null",
}
"""What to type instead of an option of ``clusterrun submit``, by its name in snake_case."""
