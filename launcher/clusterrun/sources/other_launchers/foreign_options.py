"""Options of other launchers that users type before SCRIPT by habit, and what to type instead.

Sources: accelerate 1.15 and Lightning 2.6 (their parsers), deepspeed/launcher/runner.py,
mpirun(1) of Open MPI and MPICH, srun(1).
"""

from collections.abc import Mapping

_WORKERS = "type --nproc-per-node N: the number of workers on each node"
_NODES = "type --nnodes N"
_ADDRESS = "type --master-addr HOST"
_PORT = "type --master-port PORT"
_HOSTS = "type --hosts HOST,HOST"
_HOSTFILE = "type --hostfile FILE"
_VARIABLE = "type --env NAME=VALUE"
_BINDING = "type --numa-binding HOW, or nothing: workers are bound to CPUs near their GPUs"
_LOGS = "type --log-dir DIR"
_FOLDER = "change to that folder first: cd FOLDER"
_NEEDLESS = "leave it out: clusterrun needs no such option"
_LABELLED = "leave it out: each line begins with its rank"
_UNBUFFERED = "leave it out: workers print without a buffer"
_IN_ACCELERATOR = "set it in the script, in Accelerator(...) or its plugins"

_FAMILIES = (
    *("deepspeed-", "dynamo-", "fp8-", "fsdp-", "megatron-lm-", "offload-", "parallelism-config-"),
    *("use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "zero-", "zero3-"),
)
"""Prefixes of accelerate's other options: all are for ``_IN_ACCELERATOR``."""

_INSTEAD: Mapping[str, Mapping[str, str]] = {
    "accelerate": {
        _WORKERS: "num-processes",
        _NODES: "num-machines",
        "type --node-rank R": "machine-rank",
        _ADDRESS: "main-process-ip",
        _PORT: "main-process-port",
        "type --devices 0,1: the GPUs of this node": "gpu-ids",
        f"{_IN_ACCELERATOR}, or type --env ACCELERATE_MIXED_PRECISION=bf16": "mixed-precision",
        "clusterrun does not read it: type its values as options, or write them to a job file"
        " (--config FILE)": "config-file",
        "leave it out: one worker for each visible GPU is the default": "multi-gpu",
        "type --env ACCELERATE_USE_CPU=true": "cpu",
        "type --env OMP_NUM_THREADS=N": "num-cpu-threads-per-process",
        _BINDING: "enable-cpu-affinity",
        "type --env ACCELERATE_DEBUG_MODE=true": "debug",
        _IN_ACCELERATOR: "gradient-accumulation-steps gradient-clipping",
        _HOSTFILE: "mpirun-hostfile deepspeed-hostfile",
        _NEEDLESS: "same-network main-training-function quiet",
        "leave it out: clusterrun starts workers on GPUs and CPUs only": (
            "tpu no-tpu-cluster vm downcast-bf16"
        ),
    },
    "deepspeed": {
        _WORKERS: "num-gpus num-accelerators",
        _NODES: "num-nodes",
        "type --hosts HOST,HOST for the nodes, --devices 0,1 for the GPUs of each": (
            "include i exclude e"
        ),
        _HOSTFILE: "H",
        "type --nnodes MIN:MAX": "min-elastic-nodes max-elastic-nodes elastic-training",
        "type --numa-binding exclusive": "bind-cores-to-rank",
        "type --numa-binding exclusive; with taskset, the whole job has fewer CPUs": (
            "bind-core-list"
        ),
        _LOGS: "enable-each-rank-log",
        "type --launcher ssh --ssh-options '-p PORT'": "ssh-port",
        "type --ssh-options 'OPTIONS'": "launcher-args",
        _NEEDLESS: "no-local-rank no-ssh no-ssh-check force-multi save-pid",
        "leave it out: clusterrun tunes nothing": "autotuning",
    },
    "Lightning": {
        _WORKERS: "gpus",
        _NODES: "num-nodes",
        _ADDRESS: "main-address",
        _PORT: "main-port",
        "set it in the script, in Trainer(...) or Fabric(...)": "accelerator strategy precision",
    },
    "mpirun": {
        _WORKERS: "n np c N npernode ppn perhost map-by",
        _HOSTS: "H host hosts",
        _HOSTFILE: "hostfile machinefile f",
        _VARIABLE: "x env genv",
        _BINDING: "bind-to rank-by report-bindings bind-to-core",
        _NEEDLESS: "oversubscribe allow-run-as-root nooversubscribe",
        "leave it out: clusterrun does not use MPI": "mca pmixmca prtemca am",
        _LABELLED: "tag-output l prepend-rank",
        _LOGS: "output-filename output",
        _FOLDER: "wdir wd",
    },
    "srun": {
        _NODES: "N nodes",
        _WORKERS: "n ntasks ntasks-per-node tasks-per-node G gpus gpus-per-node ntasks-per-gpu",
        _HOSTS: "w nodelist",
        _BINDING: "cpu-bind mem-bind gpu-bind distribution hint",
        _LABELLED: "l label",
        _UNBUFFERED: "u unbuffered",
        _LOGS: "o output e error",
        _FOLDER: "D chdir",
        _VARIABLE: "export",
        "it is for Slurm only": (
            "A account b begin C constraint c cpus-per-task cpus-per-gpu d dependency exclude"
            " exclusive x gpus-per-task gpus-per-socket gres het-group immediate I J job-name jobid"
            " K kill-on-bad-exit licenses L mem mem-per-cpu mem-per-gpu mpi nice overlap p partition"
            " pty q qos reservation signal task-prolog threads-per-core time W wait wckey"
        ),
    },
    "python": {_UNBUFFERED: "u", "type --env PYTHONWARNINGS=ACTION": "W"},
    "torch.multiprocessing.spawn": {_WORKERS: "nprocs"},
}
"""By launcher: what to type instead of these options of it; one letter is a short option."""

Foreign = Mapping[str, str]
"""What to type instead of one option, by the name of each launcher that has it."""


def foreign_option(name: str) -> Foreign | None:
    """Return what to type instead of an option, given without dashes and with - for _; None: unknown."""
    found = {
        launcher: instead
        for launcher, options in _INSTEAD.items()
        for instead, names in options.items()
        if name in names.split()
    }
    if not found and name.startswith(_FAMILIES):
        return {"accelerate": _IN_ACCELERATOR}
    return found or None
