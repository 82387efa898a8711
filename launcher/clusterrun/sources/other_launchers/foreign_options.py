"""Options of other launchers that users type before SCRIPT by habit, and what to type instead.

Sources: accelerate 1.15 and Lightning 2.6 (their parsers), deepspeed/launcher/runner.py,
mpirun(1) of Open MPI and MPICH, srun(1).
"""

from collections.abc import Mapping

_WORKERS = "type --nproc-per-node N: the number of workers on each node"
_NODES = "type --nnodes N"
_DEVICES = "type --devices 0,1: the GPUs of this node"
_HOSTS = "type --hosts HOST,HOST"
_HOSTFILE = "type --hostfile FILE"
_VARIABLE = "type --env NAME=VALUE"
_BINDING = "type --numa-binding HOW, or nothing: workers are bound to CPUs near their GPUs"
_LOGS = "type --log-dir DIR"
_NEEDLESS = "leave it out: clusterrun needs no such option"
_LABELLED = "leave it out: each line begins with its rank"
_UNBUFFERED = "leave it out: workers print without a buffer"
_IN_ACCELERATOR = "set it in the script, in Accelerator(...) or its plugins"
_NO_TPU = "leave it out: clusterrun starts workers on GPUs and CPUs only"
_ALLOCATES = "it is for Slurm only"

_ACCELERATE = {
    "num-processes": _WORKERS,
    "num-machines": _NODES,
    "machine-rank": "type --node-rank R",
    "main-process-ip": "type --master-addr HOST",
    "main-process-port": "type --master-port PORT",
    "gpu-ids": _DEVICES,
    "mixed-precision": f"{_IN_ACCELERATOR}, or type --env ACCELERATE_MIXED_PRECISION=bf16",
    "config-file": (
        "clusterrun does not read it: type its values as options, or write them to a job file"
        " (--config FILE)"
    ),
    "multi-gpu": "leave it out: one worker for each visible GPU is the default",
    "cpu": "type --env ACCELERATE_USE_CPU=true",
    "num-cpu-threads-per-process": "type --env OMP_NUM_THREADS=N",
    "enable-cpu-affinity": _BINDING,
    "debug": "type --env ACCELERATE_DEBUG_MODE=true",
    "gradient-accumulation-steps": _IN_ACCELERATOR,
    "gradient-clipping": _IN_ACCELERATOR,
    "mpirun-hostfile": _HOSTFILE,
    "deepspeed-hostfile": _HOSTFILE,
    "same-network": _NEEDLESS,
    "main-training-function": _NEEDLESS,
    "quiet": _NEEDLESS,
    "tpu": _NO_TPU,
    "no-tpu-cluster": _NO_TPU,
    "vm": _NO_TPU,
    "downcast-bf16": _NO_TPU,
}
_FAMILIES = (
    *("deepspeed-", "dynamo-", "fp8-", "fsdp-", "megatron-lm-", "offload-", "parallelism-config-"),
    *("use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "zero-", "zero3-"),
)
"""Prefixes of accelerate's other options: all are for ``_IN_ACCELERATOR``."""

_MPIRUN = {
    **dict.fromkeys(("n", "np", "c", "N", "npernode", "ppn", "perhost", "map-by"), _WORKERS),
    **dict.fromkeys(("H", "host", "hosts"), _HOSTS),
    **dict.fromkeys(("hostfile", "machinefile", "f"), _HOSTFILE),
    **dict.fromkeys(("x", "env", "genv"), _VARIABLE),
    **dict.fromkeys(("bind-to", "rank-by", "report-bindings", "bind-to-core"), _BINDING),
    **dict.fromkeys(("oversubscribe", "allow-run-as-root", "nooversubscribe"), _NEEDLESS),
    **dict.fromkeys(
        ("mca", "pmixmca", "prtemca", "am"), "leave it out: clusterrun does not use MPI"
    ),
    **dict.fromkeys(("tag-output", "l", "prepend-rank"), _LABELLED),
    **dict.fromkeys(("output-filename", "output"), _LOGS),
    **dict.fromkeys(("wdir", "wd"), "change to that folder first: cd FOLDER"),
}

_SRUN = {
    **dict.fromkeys(("N", "nodes"), _NODES),
    **dict.fromkeys(("n", "ntasks", "ntasks-per-node", "tasks-per-node"), _WORKERS),
    **dict.fromkeys(("G", "gpus", "gpus-per-node", "ntasks-per-gpu"), _WORKERS),
    **dict.fromkeys(("w", "nodelist"), _HOSTS),
    **dict.fromkeys(("cpu-bind", "mem-bind", "gpu-bind", "distribution", "hint"), _BINDING),
    **dict.fromkeys(("l", "label"), _LABELLED),
    **dict.fromkeys(("u", "unbuffered"), _UNBUFFERED),
    **dict.fromkeys(("o", "output", "e", "error"), _LOGS),
    **dict.fromkeys(("D", "chdir"), "change to that folder first: cd FOLDER"),
    "export": _VARIABLE,
    **dict.fromkeys(
        (
            *("A", "account", "b", "begin", "C", "constraint", "c", "cpus-per-task"),
            *("cpus-per-gpu", "d", "dependency", "exclude", "exclusive", "x", "gpus-per-task"),
            *("gpus-per-socket", "gres", "het-group", "immediate", "I", "J", "job-name", "jobid"),
            *("K", "kill-on-bad-exit", "licenses", "L", "mem", "mem-per-cpu", "mem-per-gpu", "mpi"),
            *("nice", "overlap", "p", "partition", "pty", "q", "qos", "reservation", "signal"),
            *("task-prolog", "threads-per-core", "time", "W", "wait", "wckey"),
        ),
        _ALLOCATES,
    ),
}

_DEEPSPEED = {
    **dict.fromkeys(("num-gpus", "num-accelerators"), _WORKERS),
    "num-nodes": _NODES,
    **dict.fromkeys(
        ("include", "i", "exclude", "e"),
        "type --hosts HOST,HOST for the nodes, --devices 0,1 for the GPUs of each",
    ),
    "H": _HOSTFILE,
    **dict.fromkeys(("min-elastic-nodes", "max-elastic-nodes"), "type --nnodes MIN:MAX"),
    "elastic-training": "type --nnodes MIN:MAX",
    "bind-cores-to-rank": "type --numa-binding exclusive",
    "bind-core-list": "type --numa-binding exclusive; with taskset, the whole job has fewer CPUs",
    "enable-each-rank-log": _LOGS,
    **dict.fromkeys(("no-local-rank", "no-ssh", "no-ssh-check", "force-multi"), _NEEDLESS),
    **dict.fromkeys(("launcher", "launcher-args", "ssh-port", "save-pid"), _NEEDLESS),
    "autotuning": "leave it out: clusterrun tunes nothing",
}

_LIGHTNING = {
    "gpus": _WORKERS,
    "num-nodes": _NODES,
    "main-address": "type --master-addr HOST",
    "main-port": "type --master-port PORT",
    **dict.fromkeys(
        ("accelerator", "strategy", "precision"),
        "set it in the script, in Trainer(...) or Fabric(...)",
    ),
}

_OPTIONS_OF: Mapping[str, Mapping[str, str]] = {
    "accelerate": _ACCELERATE,
    "deepspeed": _DEEPSPEED,
    "Lightning": _LIGHTNING,
    "mpirun": _MPIRUN,
    "srun": _SRUN,
    "python": {"u": _UNBUFFERED, "W": "type --env PYTHONWARNINGS=ACTION"},
    "torch.multiprocessing.spawn": {"nprocs": _WORKERS},
}
"""What to type instead, by launcher and option; one letter is a short option."""

STARTERS = ("mpirun", "srun")
"""Launchers that start clusterrun on each node: their options stand before it."""


Foreign = Mapping[str, str]
"""What to type instead of one option, by the name of each launcher that has it."""


def foreign_option(name: str) -> Foreign | None:
    """Return what to type instead of an option, given without dashes and with - for _; None: unknown."""
    found = {
        launcher: options[name] for launcher, options in _OPTIONS_OF.items() if name in options
    }
    if not found and name.startswith(_FAMILIES):
        return {"accelerate": _IN_ACCELERATOR}
    return found or None
