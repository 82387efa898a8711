"""The documented variables of each platform: values and origins in ``--dry-run --json``."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.captured import captured
from tests.machine_trees import PciDevice, two_nodes, write_tree
from tests.typed import typed

pytestmark = pytest.mark.usefixtures("script")

PATH = {"PATH": os.environ.get("PATH", os.defpath)}
TASK_FIELDS = ("rank", "size", "local_rank", "local_size", "node_rank", "nodes")


class Case(NamedTuple):
    """A platform and the expected values."""

    name: str
    """Its heading in platforms.txt."""
    cluster: str
    expected: Mapping[str, str]
    """By the names of a job file: "VALUE (ORIGIN)"."""
    flags: tuple[str, ...] = ()
    tasks: tuple[int, ...] | None = None
    """``TASK_FIELDS`` where there is a task for each worker."""


def variables(name: str) -> dict[str, str]:
    """Return the variables under a heading of platforms.txt."""
    return captured(name, "platforms.txt")


def dry_run(environ: Mapping[str, str], *flags: str) -> dict[str, Any]:
    """Return the JSON of a dry run with these variables and no others."""
    done = typed([*flags, "--dry-run", "--json", "train.py"], {**PATH, **environ}, Path())
    assert done.code == 0, done.err
    content: dict[str, Any] = json.loads(done.out)
    return content


def error(environ: Mapping[str, str], *flags: str) -> str:
    """Return the error of a dry run, which exits with code 2."""
    done = typed([*flags, "--dry-run", "train.py"], {**PATH, **environ}, Path())
    assert (done.code, done.out) == (2, ""), done.err
    return done.err


KUBEFLOW = {
    "nnodes": "2 (PET_NNODES)",
    "nproc_per_node": "8 (PET_NPROC_PER_NODE)",
    "master_addr": "llama-node-0-0.llama (PET_MASTER_ADDR)",
    "master_port": "29500 (PET_MASTER_PORT)",
}
PYTORCHJOB = {
    **KUBEFLOW,
    "master_addr": "bert-master-0 (PET_MASTER_ADDR)",
    "master_port": "23456 (PET_MASTER_PORT)",
}
HFAI = {
    "nnodes": "2 (WORLD_SIZE)",
    "nproc_per_node": "per-gpu (default)",
    "master_addr": "10.2.200.1 (MASTER_IP)",
    "master_port": "2223 (MASTER_PORT)",
    "run_id": "55 (MARSV2_TASK_ID)",
    "numa_node": "None (default)",
}
DLC = {
    "nnodes": "2 (WORLD_SIZE)",
    "nproc_per_node": "8 (NPROC_PER_NODE)",
    "master_addr": "dlc18isgeayd0000-master-0 (MASTER_ADDR)",
    "master_port": "23456 (MASTER_PORT)",
}
VOLCANO = {
    "nnodes": "3 (WORLD_SIZE)",
    "master_addr": "pytorch-job-master-0.pytorch-job (MASTER_ADDR)",
    "master_port": "23456 (MASTER_PORT)",
}
SKYPILOT = {
    "nnodes": "2 (SKYPILOT_NUM_NODES)",
    "nproc_per_node": "8 (SKYPILOT_NUM_GPUS_PER_NODE)",
    "hosts": "['1.2.3.4', '3.4.5.6'] (SKYPILOT_NODE_IPS)",
    "master_addr": "1.2.3.4 (SKYPILOT_NODE_IPS)",
    "master_port": "29500 (default)",
    "run_id": "sky-2023-07-06-21-18-31-563597_myclus_1 (SKYPILOT_TASK_ID)",
}
SAGEMAKER = {
    "nnodes": "2 (SM_HOSTS)",
    "nproc_per_node": "8 (SM_NUM_GPUS)",
    "hosts": "['algo-1', 'algo-2'] (SM_HOSTS)",
    "master_addr": "algo-1 (SM_HOSTS)",
}
AZUREML = {
    "nnodes": "2 (AZUREML_NODE_COUNT)",
    "nproc_per_node": "1 (WORLD_SIZE, AZUREML_NODE_COUNT)",
    "master_addr": "10.0.0.4 (MASTER_ADDR)",
    "master_port": "6105 (MASTER_PORT)",
}
OPENMPI = {
    "nnodes": "2 (OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE)",
    "nproc_per_node": "per-gpu (default)",
    "master_addr": "10.77.0.1 (OMPI_MCA_orte_hnp_uri)",
    "run_id": "2537947137 (PMIX_NAMESPACE)",
}
PADDLE = {
    "nnodes": "2 (PADDLE_TRAINERS)",
    "hosts": "['10.1.1.1', '10.1.1.2'] (PADDLE_TRAINERS)",
    "master_addr": "10.1.1.1 (PADDLE_TRAINERS)",
    "base_port": "6007 (PADDLE_PORT)",
    "workerlog": "True (PADDLE_TRAINERS)",
    "log_dir": "logs (--log-dir)",
}
PADDLE_FLAGS = ("--log_dir", "logs")
ON_N0 = {"master_addr": "n0 (MASTER_ADDR)", "master_port": "29500 (default)"}

CASES = [
    Case("trainer.0", "kubernetes", {**KUBEFLOW, "node_rank": "0 (PET_NODE_RANK)"}),
    Case("trainer.1", "kubernetes", {**KUBEFLOW, "node_rank": "1 (PET_NODE_RANK)"}),
    Case("pytorchjob.0", "exports", {**PYTORCHJOB, "node_rank": "0 (PET_NODE_RANK)"}),
    Case("pytorchjob.1", "exports", {**PYTORCHJOB, "node_rank": "1 (PET_NODE_RANK)"}),
    Case(
        "pytorchjob.old",
        "exports",
        {"nnodes": "2 (WORLD_SIZE)", "node_rank": "1 (RANK)", "nproc_per_node": "1 (--nproc-per-node)"},
        ("--nproc-per-node", "1"),
    ),
    Case(
        "pytorchjob.elastic",
        "none",
        {
            "nnodes": "4 (PET_NNODES)",
            "fewest_nodes": "2 (PET_NNODES)",
            "node_rank": "None (default)",
            "rdzv_endpoint": "bert-worker-0:23456 (PET_RDZV_ENDPOINT)",
            "run_id": "bert (PET_RDZV_ID)",
            "max_restarts": "3 (PET_MAX_RESTARTS)",
        },
    ),
    Case("hfai.0", "hfai", {**HFAI, "node_rank": "0 (MARSV2_RANK)"}),
    Case("hfai.1", "hfai", {**HFAI, "node_rank": "1 (MARSV2_RANK)"}),
    Case(
        "hfai.half",
        "hfai",
        {"nnodes": "1 (WORLD_SIZE)", "numa_node": "1 (MARSV2_ASSIGNED_NUMA)"},
    ),
    Case(
        "hfai.simulated",
        "hfai",
        {"nnodes": "1 (WORLD_SIZE)", "node_rank": "0 (RANK)", "master_port": "None (default)"},
    ),
    Case("dlc.0", "pai-dlc", {**DLC, "node_rank": "0 (RANK)"}),
    Case("dlc.1", "pai-dlc", {**DLC, "node_rank": "1 (RANK)"}),
    Case(
        "dlc.2024",
        "pai-dlc",
        {**DLC, "node_rank": "1 (RANK)", "nproc_per_node": "per-gpu (default)"},
        ("--cluster", "pai-dlc"),
    ),
    Case(
        "aihc.1",
        "aihc",
        {"nnodes": "4 (WORLD_SIZE)", "node_rank": "1 (RANK)"},
        ("--cluster", "aihc"),
    ),
    Case("volcano.0", "volcano", {**VOLCANO, "node_rank": "0 (RANK)"}),
    Case("volcano.1", "volcano", {**VOLCANO, "node_rank": "1 (RANK)"}),
    Case(
        "volcano.svc",
        "volcano",
        {
            "nnodes": "2 (VC_WORKER_HOSTS)",
            "node_rank": "1 (VC_TASK_INDEX)",
            "master_addr": "modelarts-worker-0.modelarts (VC_WORKER_HOSTS)",
        },
    ),
    Case("skypilot.0", "skypilot", {**SKYPILOT, "node_rank": "0 (SKYPILOT_NODE_RANK)"}),
    Case("skypilot.1", "skypilot", {**SKYPILOT, "node_rank": "1 (SKYPILOT_NODE_RANK)"}),
    Case("sagemaker.0", "sagemaker", {**SAGEMAKER, "node_rank": "0 (SM_CURRENT_HOST)"}),
    Case("sagemaker.1", "sagemaker", {**SAGEMAKER, "node_rank": "1 (SM_CURRENT_HOST)"}),
    Case("azureml.0", "azureml", AZUREML, tasks=(1, 8, 1, 4, 0, 2)),
    Case("azureml.1", "azureml", AZUREML, tasks=(6, 8, 2, 4, 1, 2)),
    Case(
        "azureml.one",
        "azureml",
        {**AZUREML, "node_rank": "1 (RANK)", "nproc_per_node": "per-gpu (default)"},
    ),
    Case(
        "azureml.mpi",
        "openmpi",
        {"master_addr": "10.0.0.6 (AZ_BATCH_MASTER_NODE)"},
        tasks=(5, 8, 1, 4, 1, 2),
    ),
    Case("ray.3", "azureml", {"master_port": "43210 (MASTER_PORT)"}, tasks=(3, 4, 1, 2, 1, 2)),
    Case("openmpi.0", "openmpi", {**OPENMPI, "node_rank": "0 (OMPI_COMM_WORLD_RANK)"}),
    Case("openmpi.1", "openmpi", {**OPENMPI, "node_rank": "1 (OMPI_COMM_WORLD_RANK)"}),
    Case(
        "openmpi.task",
        "openmpi",
        {**OPENMPI, "nproc_per_node": "1 (OMPI_COMM_WORLD_LOCAL_SIZE)"},
        tasks=(3, 4, 1, 2, 1, 2),
    ),
    Case(
        "openmpi5.1",
        "openmpi",
        {
            "node_rank": "1 (OMPI_COMM_WORLD_RANK)",
            "master_addr": "gpu-01 (PMIX_NAMESPACE)",
            "run_id": "prterun-gpu-01-4711@1 (PMIX_NAMESPACE)",
        },
    ),
    Case("mpich.0", "mpich", {**ON_N0, "node_rank": "0 (PMI_RANK)"}),
    Case("mpich.1", "mpich", {**ON_N0, "node_rank": "1 (PMI_RANK)"}),
    Case("mpich.task", "mpich", ON_N0, tasks=(2, 4, 0, 2, 1, 2)),
    Case("mpich.task", "intel-mpi", ON_N0, ("--cluster", "intel-mpi"), (2, 4, 0, 2, 1, 2)),
    Case("mvapich.1", "mvapich", {**ON_N0, "node_rank": "1 (MV2_COMM_WORLD_RANK)"}),
    Case(
        "mvapich.task",
        "mvapich",
        {"master_addr": "127.0.0.1 (MV2_COMM_WORLD_SIZE, MV2_COMM_WORLD_LOCAL_SIZE)"},
        tasks=(1, 2, 1, 2, 0, 1),
    ),
    Case(
        "pals.task",
        "pals",
        {"master_addr": "x1000c0s0b0n0 (MASTER_ADDR)", "run_id": "3f9c8b0e (PALS_APID)"},
        tasks=(5, 8, 1, 4, 1, 2),
    ),
    Case(
        "flux.0",
        "flux",
        {"nnodes": "2 (FLUX_JOB_NNODES)", "node_rank": "0 (FLUX_TASK_RANK)", "run_id": "42 (FLUX_JOB_ID)"},
    ),
    Case("flux.task", "flux", {"nnodes": "2 (FLUX_JOB_NNODES)"}, tasks=(3, 4, 1, 2, 1, 2)),
    Case(
        "lsf.task",
        "lsf",
        {"hosts": "['h41n11', 'h41n12'] (LSB_MCPU_HOSTS)", "master_addr": "h41n11 (LSB_MCPU_HOSTS)"},
        tasks=(7, 12, 1, 6, 1, 2),
    ),
    Case(
        "lsf.1",
        "lsf",
        {"node_rank": "1 (JSM_NAMESPACE_RANK)", "run_id": "1234 (LSB_JOBID)"},
    ),
    Case(
        "kubernetes.1",
        "kubernetes",
        {"nnodes": "4 (--nnodes)", "node_rank": "1 (JOB_COMPLETION_INDEX)", "master_addr": "job-0.svc (--master-addr)"},
        ("--nnodes", "4", "--master-addr", "job-0.svc"),
    ),
    Case("paddle.0", "paddle", {**PADDLE, "node_rank": "0 (PADDLE_TRAINER_ID)"}, PADDLE_FLAGS),
    Case("paddle.1", "paddle", {**PADDLE, "node_rank": "1 (PADDLE_TRAINER_ID)"}, PADDLE_FLAGS),
    Case(
        "paddle.endpoints",
        "paddle",
        {
            "nnodes": "2 (PADDLE_TRAINER_ENDPOINTS)",
            "node_rank": "1 (PADDLE_TRAINER_ID)",
            "master_addr": "bert-worker-0 (PADDLE_TRAINER_ENDPOINTS)",
            "base_port": "6170 (default)",
        },
    ),
    Case(
        "paddle.master",
        "paddle",
        {
            "nnodes": "2 (--hosts)",
            "node_rank": "1 (--node-rank)",
            "nproc_per_node": "4 (PADDLE_NPROC_PER_NODE)",
            "port_candidates": "[38714] (PADDLE_MASTER)",
        },
        ("--hosts", "10.0.0.1,10.0.0.2", "--node-rank", "1"),
    ),
    Case("paddle.worker", "none", {"nnodes": "1 (default)"}),
    Case(
        "exports.1",
        "exports",
        {
            "nnodes": "2 (NNODES)",
            "node_rank": "1 (NODE_RANK)",
            "nproc_per_node": "8 (NPROC_PER_NODE)",
            "master_addr": "gpu-01 (MASTER_ADDR)",
            "master_port": "6000 (MASTER_PORT)",
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{case.name}-{case.cluster}" for case in CASES])
def test_documented_variables(case: Case) -> None:
    """Each value has its variable as origin, and the workers' ranks follow."""
    printed = dry_run(variables(case.name), *case.flags)

    job = printed["job"]
    found = {name: f"{job[name]['value']} ({job[name]['origin']})" for name in case.expected}
    assert found == dict(case.expected)
    assert job["cluster"]["value"] == case.cluster
    tasks = job["tasks"]["value"]
    assert (tasks and tuple(tasks[name] for name in TASK_FIELDS)) == case.tasks
    first = printed["workers"][0]["env"]
    if case.tasks:
        assert (int(first["RANK"]), int(first["WORLD_SIZE"])) == case.tasks[:2]
        assert (int(first["LOCAL_WORLD_SIZE"]), int(first["GROUP_RANK"])) == case.tasks[3:5]


WRONG = [
    ("pytorchjob.1", {"PET_NODE_RANK": "2"}, "node_rank is 2 (PET_NODE_RANK), but nnodes is 2"),
    ("trainer.1", {"PET_NNODES": "two"}, "PET_NNODES: 'two' is not a number of nodes"),
    ("hfai.1", {"MARSV2_RANK": "2"}, "MARSV2_RANK is 2, but must be less than WORLD_SIZE, which is 2"),
    ("hfai.1", {"WORLD_SIZE": ""}, "WORLD_SIZE is not set"),
    ("hfai.half", {"MARSV2_ASSIGNED_NUMA": "2"}, "MARSV2_ASSIGNED_NUMA: '2' is not one of"),
    ("hfai.1", {"MASTER_IP": "", "MASTER_ADDR": ""}, "nnodes is 2 (WORLD_SIZE), but the address of node 0 is"),
    ("dlc.1", {"RANK": "2"}, "RANK is 2, but must be less than WORLD_SIZE, which is 2"),
    ("dlc.1", {"RANK": "-1"}, "RANK: '-1' is not a number"),
    ("volcano.1", {"RANK": "3"}, "RANK is 3, but must be less than WORLD_SIZE, which is 3"),
    ("volcano.1", {"RANK": ""}, "Volcano has set 2 kinds of tasks (VC_MASTER_HOSTS, VC_WORKER"),
    ("volcano.svc", {"VC_WORKER_HOSTS": ""}, "Volcano has set no list of hosts, but"),
    ("skypilot.1", {"SKYPILOT_NODE_IPS": "1.2.3.4"}, "SKYPILOT_NUM_NODES is 2, but SKYPILOT_NODE_IPS lists 1"),
    ("sagemaker.1", {"SM_CURRENT_HOST": "algo-3"}, "SM_CURRENT_HOST is algo-3, but SM_HOSTS lists"),
    ("sagemaker.1", {"SM_CURRENT_HOST": ""}, "SM_CURRENT_HOST is not set, but SM_HOSTS lists"),
    ("sagemaker.1", {"SM_HOSTS": "algo-1"}, "SM_HOSTS: 'algo-1' is not a list in JSON"),
    ("sagemaker.1", {"SM_HOSTS": '["\udcff"]'}, r"""SM_HOSTS: '["\udcff"]' is not a list in JSON"""),
    ("azureml.0", {"AZUREML_NODE_COUNT": ""}, "WORLD_SIZE is 8 and LOCAL_RANK is 1: this is one"),
    ("azureml.0", {"AZUREML_NODE_COUNT": "3"}, "WORLD_SIZE is 8 and WORLD_SIZE, AZUREML_NODE_COUNT is"),
    ("openmpi.task", {"OMPI_COMM_WORLD_SIZE": "5"}, "OMPI_COMM_WORLD_SIZE is 5 and OMPI_COMM_WORLD_LOCAL_SIZE is"),
    ("openmpi.1", {"OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_SIZE is 3 and OMPI_COMM_WORLD_LOCAL_SIZE is"),
    ("openmpi.1", {"OMPI_COMM_WORLD_SIZE": ""}, "OMPI_COMM_WORLD_SIZE is not set"),
    ("mpich.1", {"MASTER_ADDR": ""}, "nnodes is 2 (PMI_SIZE, MPI_LOCALNRANKS), but the address"),
    ("mpich.1", {"PMI_SIZE": "1"}, "PMI_RANK is 1, but must be less than PMI_SIZE, which is 1"),
    ("mvapich.1", {"MV2_COMM_WORLD_LOCAL_RANK": "1"}, "MV2_COMM_WORLD_LOCAL_RANK is 1, but must be less than MV2_COMM_WORLD_LOCAL_SIZE"),
    ("pals.task", {"PALS_NODEID": "2"}, "PALS_NODEID is 2, but must be less than PMI_SIZE, PALS_LOCAL_SIZE, which is 2"),
    ("flux.task", {"FLUX_JOB_SIZE": "5"}, "FLUX_JOB_SIZE is 5 and FLUX_JOB_NNODES is 2: nodes have different"),
    ("lsf.task", {"JSM_NAMESPACE_SIZE": "9"}, "JSM_NAMESPACE_SIZE is 9 and JSM_NAMESPACE_LOCAL_SIZE is"),
    ("kubernetes.1", {"JOB_COMPLETION_INDEX": "one"}, "JOB_COMPLETION_INDEX: 'one' is not a number"),
    ("paddle.1", {"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID is 2, but must be less than PADDLE_TRAINERS, which is 2"),
    ("paddle.master", {"PADDLE_NNODES": "x"}, "PADDLE_NNODES: 'x' is not a number"),
    ("paddle.master", {}, "PADDLE_TRAINER_ENDPOINTS needs the hosts of all 2 nodes"),
    ("exports.1", {"NODE_RANK": "2"}, "NODE_RANK is 2, but must be less than NNODES, which is 2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes", "message"), WRONG, ids=[f"{name}-{text[:30]}" for name, _, text in WRONG]
)
def test_wrong_variables_are_errors(name: str, changes: Mapping[str, str], message: str) -> None:
    """The message has the variable and its value, and there is a hint."""
    printed = error({**variables(name), **changes})

    assert printed.startswith(f"clusterrun: error: {message}")
    assert len(printed.splitlines()) > 1


def test_ambiguous_rank_with_several_workers_is_an_error() -> None:
    """RANK and WORLD_SIZE may count nodes or processes; the hint has a line for each case."""
    printed = error(variables("dlc.2024"), "--nproc-per-node", "8")

    assert printed == (
        "clusterrun: error: RANK is 1 and WORLD_SIZE 2, which may count nodes or processes, but"
        " this node would start 8 workers (nproc_per_node: --nproc-per-node)\n"
        "  if RANK counts nodes:\n"
        "    clusterrun --nproc-per-node 8 --dry-run --cluster pai-dlc train.py\n"
        "  if it counts processes, each with one worker:\n"
        "    clusterrun --nproc-per-node 8 --dry-run --nnodes $WORLD_SIZE --node-rank $RANK"
        " --nproc-per-node 1 train.py\n"
    )


def test_paddle_workers_get_paddle_variables() -> None:
    """Torchrun's variables are also set."""
    workers = dry_run(variables("paddle.1"), "--nproc-per-node", "2")["workers"]

    last = workers[1]["env"]
    assert last["PADDLE_TRAINER_ID"] == last["RANK"] == "3"
    assert last["PADDLE_TRAINERS_NUM"] == last["WORLD_SIZE"] == "4"
    assert last["PADDLE_CURRENT_ENDPOINT"] == "10.1.1.2:6008"
    assert last["PADDLE_TRAINER_ENDPOINTS"] == (
        "10.1.1.1:6007,10.1.1.1:6008,10.1.1.2:6007,10.1.1.2:6008"
    )
    assert last["FLAGS_selected_gpus"] == "1"


def test_options_of_paddles_launcher(tmp_path: Path) -> None:
    """The options of ``python -m paddle.distributed.launch``, on the second of two nodes."""
    gpus = (PciDevice(f"0000:1{at}:00.0", uuid=f"GPU-{at}", minor=at) for at in range(3))

    printed = dry_run(
        {},
        f"--machine-root={write_tree(tmp_path, two_nodes(tuple(gpus)))}",
        *("--cluster_node_ips=192.168.0.16,192.168.0.17", "--node_ip=192.168.0.17"),
        *("--started_port=6200", "--selected_gpus=0,1", "--use_paddlecloud", "--log_dir=mylog"),
    )

    job, last = printed["job"], printed["workers"][1]["env"]
    assert job["node_rank"] == {"value": 1, "origin": "--cluster-node-ips"}
    assert job["nproc_per_node"] == {"value": 2, "origin": "--selected-gpus"}
    assert job["master_addr"] == {"value": "192.168.0.16", "origin": "--cluster-node-ips"}
    assert job["cluster"] == {"value": "paddle", "origin": "--use-paddlecloud"}
    assert job["workerlog"]["value"] is True
    assert last["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert last["PADDLE_CURRENT_ENDPOINT"] == "192.168.0.17:6201"


def test_cluster_paddle_without_variables() -> None:
    """One node needs no variables."""
    printed = dry_run({}, "--cluster", "paddle", "--nproc-per-node", "2")

    endpoints = [worker["env"]["PADDLE_CURRENT_ENDPOINT"] for worker in printed["workers"]]
    assert endpoints == ["127.0.0.1:6170", "127.0.0.1:6171"]
