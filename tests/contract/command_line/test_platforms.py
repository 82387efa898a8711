"""Frameworks in workers find clusterrun's ranks, whatever the platform's variables are."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

import pytest
from free_ports import free_port

from tests.captured import captured
from tests.contract.launched import Launcher

SECONDS = 300.0

PRINT_VARIABLES = "import json, os; print(json.dumps(dict(os.environ)))"

DETECT = """
import json, os, sys
import lightning.fabric as fabric
from accelerate import PartialState

def detect():
    strategy = fabric.Fabric(
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    ).strategy
    found = strategy.cluster_environment
    ranks = (found.global_rank(), found.world_size(), found.local_rank(), found.node_rank())
    state = PartialState(cpu=True)
    accelerates = (state.process_index, state.num_processes, state.local_process_index)
    words = (type(found).__name__, *ranks, "accelerate", *accelerates)
    # One write: the other worker prints, too.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
    state.destroy_process_group()

for name, workers in json.load(sys.stdin).items():
    print(name, flush=True)
    pids = []
    for variables in workers:
        pids.append(os.fork())
        if pids[-1] == 0:
            os.environ.clear()
            os.environ.update(variables)
            detect()
            os._exit(0)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0], name
"""
"""Reads the variables of two workers by name; imports the frameworks once for all."""


class Platform(NamedTuple):
    """Two processes of a platform, on two nodes or as two tasks of one node."""

    name: str
    first: Mapping[str, str]
    second: Mapping[str, str]
    flags: tuple[str, ...] = ()
    tasks: bool = False


def two_nodes(name: str, *flags: str, **changes: str) -> Platform:
    """Return the two nodes of a platform in platforms.txt."""
    first, second = (captured(f"{name}.{node}", "platforms.txt") | changes for node in "01")
    return Platform(name, first, second, flags)


def two_tasks(name: str, heading: str, **ranks: str) -> Platform:
    """Return two tasks of one node; in the values of ``ranks``, "rank" stands for the number of the task."""
    variables = captured(heading, "platforms.txt")
    first, second = (
        variables | {key: value.replace("rank", number) for key, value in ranks.items()}
        for number in "01"
    )
    return Platform(name, first, second, tasks=True)


def task_variables(prefix: str, *words: str) -> dict[str, str]:
    """Return variables with this prefix: sizes are 2, ranks are the number of the task."""
    return {f"{prefix}{word}": "2" if "SIZE" in word else "rank" for word in words}


MPI = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")

PLATFORMS = [
    two_nodes("dlc", NPROC_PER_NODE="1"),
    two_tasks("openmpi", "openmpi.task", **task_variables("OMPI_COMM_WORLD_", *MPI)),
    two_nodes("trainer", PET_NPROC_PER_NODE="1", PET_MASTER_ADDR="127.0.0.1"),
    two_nodes("pytorchjob", PET_NPROC_PER_NODE="1", PET_MASTER_ADDR="127.0.0.1"),
    two_nodes("hfai", MASTER_IP="127.0.0.1"),
    two_nodes("volcano", WORLD_SIZE="2"),
    two_nodes("skypilot", SKYPILOT_NUM_GPUS_PER_NODE="0"),
    two_nodes("sagemaker", SM_NUM_GPUS="0"),
    two_nodes("openmpi"),
    two_nodes("mpich"),
    two_nodes("paddle", "--nproc-per-node", "1"),
    two_tasks("azureml", "azureml.0", **task_variables("", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
             NODE_RANK="0", AZUREML_NODE_COUNT="1"),
    two_tasks("mpich", "mpich.task", PMI_RANK="rank", PMI_SIZE="2", MPI_LOCALRANKID="rank",
             MPI_LOCALNRANKS="2"),
    two_tasks("mvapich", "mvapich.task", **task_variables("MV2_COMM_WORLD_", *MPI)),
    two_tasks("pals", "pals.task", **task_variables("PALS_", "RANKID", "LOCAL_RANKID", "LOCAL_SIZE"),
             PMI_SIZE="2", PALS_NODEID="0"),
    two_tasks("flux", "flux.task", FLUX_TASK_RANK="rank", FLUX_TASK_LOCAL_ID="rank",
             FLUX_JOB_SIZE="2", FLUX_JOB_NNODES="1", PMI_RANK="rank", PMI_SIZE="2"),
    two_tasks("lsf", "lsf.task", **task_variables("JSM_NAMESPACE_", *MPI),
             **task_variables("OMPI_COMM_WORLD_", *MPI), LSB_MCPU_HOSTS="batch5 1 h41n11 42"),
    Platform(
        "kubernetes",
        {"JOB_COMPLETION_INDEX": "0"},
        {"JOB_COMPLETION_INDEX": "1"},
        ("--nnodes", "2"),
    ),
    Platform(
        "bare triple",
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"RANK": "1", "WORLD_SIZE": "2"},
        ("--nproc-per-node", "1"),
    ),
]  # fmt: skip


def name_of(platform: Platform) -> str:
    return f"{platform.name}{'-tasks' if platform.tasks else ''}"


@pytest.mark.long
@pytest.mark.timeout(SECONDS)
def test_frameworks_agree_on_the_ranks(clusterrun: Launcher) -> None:
    """Lightning detects some platforms itself, and accelerate reads MPI's variables."""
    workers = {name_of(it): variables_of_workers(it, clusterrun) for it in PLATFORMS}
    command = (sys.executable, "-c", DETECT)

    done = subprocess.run(
        command,
        input=json.dumps(workers),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )

    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    found = {lines[at]: sorted(lines[at + 1 : at + 3]) for at in range(0, len(lines), 3)}
    assert found == {name_of(it): ranks_of(it) for it in PLATFORMS}


def variables_of_workers(platform: Platform, clusterrun: Launcher) -> list[dict[str, str]]:
    """Return all variables of the worker of each process of the platform."""
    port = str(free_port())
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    rendezvous = {**here, **({"PET_MASTER_PORT": port} if "PET_NNODES" in platform.first else {})}
    jobs = [
        clusterrun.script(PRINT_VARIABLES, *platform.flags, environ={**environ, **rendezvous})
        for environ in (platform.first, platform.second)
    ]
    ends = [job.ended() for job in jobs]
    assert [end.code for end in ends] == [0, 0], [end.err for end in ends]
    # A task's line begins with its rank.
    return [json.loads(end.out[end.out.index("{") :]) for end in ends]


def ranks_of(platform: Platform) -> list[str]:
    local, node = (1, 0) if platform.tasks else (0, 1)
    return [
        "TorchElasticEnvironment 0 2 0 0 accelerate 0 2 0",
        f"TorchElasticEnvironment 1 2 {local} {node} accelerate 1 2 {local}",
    ]
