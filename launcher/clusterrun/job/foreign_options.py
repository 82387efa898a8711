"""Options of other launchers, and what to type instead.

Sources: the parsers of accelerate 1.15 and Lightning 2.6, deepspeed/launcher/runner.py, mpirun(1) of
Open MPI and MPICH, srun(1). ``cli/splitting.py`` uses them too: the name of such an option is not
taken for an abbreviation of a clusterrun option.
"""

import re
from collections.abc import Collection, Mapping

_WORKERS = "use --nproc-per-node N: the number of workers on each node"
_GPUS = f"{_WORKERS}; or --devices 0,1: which GPUs of the node"
_NODES = "use --nnodes N"
_ADDRESS = "use --master-addr HOST"
_PORT = "use --master-port PORT"
_HOSTS = "use --hosts HOST,HOST"
_HOSTFILE = "use --hostfile FILE"
_VARIABLE = "use --env NAME=VALUE"
_BINDING = (
    "use --numa-binding HOW, or no option: by default, workers are bound to CPUs near their GPUs"
)
_LOGS = "use --log-dir DIR"
_FOLDER = "change to that folder first: cd FOLDER"
_NEEDLESS = "remove it: clusterrun needs no such option"
_LABELLED = "remove it: each line begins with its rank"
_UNBUFFERED = "remove it: the output of workers is unbuffered"
_IN_ACCELERATOR = "set it in the script, in Accelerator(...) or its plugins"

_THREADS = "use --env OMP_NUM_THREADS=N"
_SIZES = "use --nnodes MIN:MAX"

_FAMILIES = (
    *("deepspeed-", "dynamo-", "fp8-", "fsdp-", "megatron-lm-", "offload-", "parallelism-config-"),
    *("use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config", "zero-", "zero3-"),
)
"""Prefixes of accelerate's other options; ``_IN_ACCELERATOR`` is the answer to all of them."""

_SLURM_ONLY = (
    "A account b begin C constraint c cpus-per-task cpus-per-gpu d dependency exclude exclusive x"
    " gpus-per-task gpus-per-socket gres het-group immediate I J job-name jobid K kill-on-bad-exit"
    " licenses L mem mem-per-cpu mem-per-gpu mpi nice overlap p partition pty q qos reservation"
    " signal task-prolog threads-per-core time W wait wckey"
)

_INSTEAD: Mapping[str, Mapping[str, str]] = {
    "accelerate": {
        "num-processes": _WORKERS,
        "num-machines": _NODES,
        "machine-rank": "use --node-rank R",
        "main-process-ip": _ADDRESS,
        "main-process-port": _PORT,
        "gpu-ids": "use --devices 0,1: the GPUs of this node",
        "mixed-precision": f"{_IN_ACCELERATOR}, or use --env ACCELERATE_MIXED_PRECISION=bf16",
        "config-file": "clusterrun does not read it: set its values with options, or write them to"
        " a job file (--config FILE)",
        "multi-gpu": "remove it: one worker for each visible GPU is the default",
        "cpu": "use --env ACCELERATE_USE_CPU=true",
        "num-cpu-threads-per-process": _THREADS,
        "enable-cpu-affinity": _BINDING,
        "debug": "use --env ACCELERATE_DEBUG_MODE=true",
        "gradient-accumulation-steps gradient-clipping": _IN_ACCELERATOR,
        "mpirun-hostfile deepspeed-hostfile": _HOSTFILE,
        "same-network main-training-function quiet": _NEEDLESS,
        "tpu no-tpu-cluster vm downcast-bf16": "remove it: clusterrun starts workers on GPUs and"
        " CPUs only",
    },
    "deepspeed": {
        "num-gpus num-accelerators": _WORKERS,
        "num-nodes": _NODES,
        "include i exclude e": "use --hosts HOST,HOST for the nodes, --devices 0,1 for the GPUs of"
        " each",
        "H": _HOSTFILE,
        "min-elastic-nodes max-elastic-nodes elastic-training": _SIZES,
        "bind-cores-to-rank": "use --numa-binding exclusive",
        "bind-core-list": (
            "use --numa-binding exclusive; to limit the whole job to fewer CPUs, start it with"
            " taskset"
        ),
        "enable-each-rank-log": _LOGS,
        "ssh-port": "use --launcher ssh --ssh-options '-p PORT'",
        "launcher-args": "use --ssh-options 'OPTIONS'",
        "no-local-rank no-ssh no-ssh-check force-multi save-pid": _NEEDLESS,
        "autotuning": "remove it: clusterrun has no autotuning",
    },
    "Lightning": {
        "gpus": _GPUS,
        "num-nodes": _NODES,
        "main-address": _ADDRESS,
        "main-port": _PORT,
        "accelerator strategy precision": "set it in the script, in Trainer(...) or Fabric(...)",
    },
    "mpirun": {
        "n np c N npernode ppn perhost map-by": _WORKERS,
        "H host hosts": _HOSTS,
        "hostfile machinefile f": _HOSTFILE,
        "x env genv": _VARIABLE,
        "bind-to rank-by report-bindings bind-to-core": _BINDING,
        "oversubscribe allow-run-as-root nooversubscribe": _NEEDLESS,
        "mca pmixmca prtemca am": "remove it: clusterrun does not use MPI",
        "tag-output l prepend-rank": _LABELLED,
        "output-filename output": _LOGS,
        "wdir wd": _FOLDER,
    },
    "srun": {
        "N nodes": _NODES,
        "n ntasks ntasks-per-node tasks-per-node ntasks-per-gpu": _WORKERS,
        "G gpus gpus-per-node": _GPUS,
        "w nodelist": _HOSTS,
        "cpu-bind mem-bind gpu-bind distribution hint": _BINDING,
        "l label": _LABELLED,
        "u unbuffered": _UNBUFFERED,
        "o output e error": _LOGS,
        "D chdir": _FOLDER,
        "export": _VARIABLE,
        _SLURM_ONLY: "it is for Slurm only",
    },
    "PyTorch's imagenet example": {
        "gpu": "use --devices 0: the GPUs of this node",
        "rank": "use --node-rank R: the node's number, from which its workers get their ranks",
        "world-size": "use --nnodes N and --nproc-per-node N",
        "dist-url": "use --master-addr HOST and --master-port PORT",
    },
    "python": {"u": _UNBUFFERED, "W": "use --env PYTHONWARNINGS=ACTION"},
    "torch.multiprocessing.spawn": {"nprocs": _WORKERS},
}
"""By launcher, what to type instead of its options; one letter is a short option."""

_NUMBERS = {
    **dict.fromkeys(("worker", "process", "proc", "rank", "task"), _WORKERS),
    **dict.fromkeys(("node", "machine", "host", "server"), _NODES),
    "gpu": _GPUS,
}
_NUMBER = re.compile(
    r"(?P<count>(?:n|nb|num|number-of|total)-?)?"
    rf"(?P<what>{'|'.join(_NUMBERS)})(?P<plural>e?s)?"
    r"(?P<after>-(?:count|num|number))?(?:-per-(?:node|machine|host))?"
)
"""``ngpus``, ``num-workers``, ``processes-per-node``."""

_USUAL = {
    "g": _GPUS,
    "gpu-id gpuids gpu-list device-id device-ids cuda-devices visible-devices"
    " cuda-visible-devices": "use --devices 0,1: the GPUs of this node",
    "port rdzv-port": _PORT,
    "master-ip master-host head head-node head-ip ip addr address": _ADDRESS,
    "node-id node-index machine-id": "use --node-rank R",
    "host-list hostlist hostnames node-list": _HOSTS,
    "host-file machine-file node-file nodefile": _HOSTFILE,
    "min-nodes max-nodes min-np max-np": _SIZES,
    "retries max-retries": "use --max-restarts N",
    "threads num-threads omp-num-threads cpus-per-worker": _THREADS,
    "backend dist-backend": "set it in the script, in init_process_group(...)",
    "log-file log-path": _LOGS,
    "cwd workdir working-dir": _FOLDER,
}
"""Names that many programs have for options that clusterrun calls differently."""


def common_option(name: str, known: Collection[str] = ()) -> str:
    """Return what to type instead of an option with a common name; "" for other names.

    ``name`` and the ``known`` flags have no dashes in front, and - instead of _.
    """
    found = _NUMBER.fullmatch(name)
    # "node" alone may mean a rank, and "gpu" an index.
    if found and (found["count"] or found["plural"] or found["after"]):
        is_of_submit = found["what"] == "gpu" and "gpus-per-node" in known
        return "use --gpus-per-node N" if is_of_submit else _NUMBERS[found["what"]]
    return next((instead for names, instead in _USUAL.items() if name in names.split()), "")


def foreign_option(name: str) -> Mapping[str, str] | None:
    """Return what to type instead of ``name``, by each launcher that has the option; None if none has it.

    ``name`` has no dashes in front, and - instead of _.
    """
    found = {
        launcher: instead
        for launcher, options in _INSTEAD.items()
        for names, instead in options.items()
        if name in names.split()
    }
    if not found and name.startswith(_FAMILIES):
        return {"accelerate": _IN_ACCELERATOR}
    return found or None
