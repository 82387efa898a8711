"""Platforms that are known by their variables alone.

They start one process per node; AzureML starts one per worker. Each function names the source of its
variables.
"""

import re
from collections.abc import Mapping

from msgspec.structs import replace

from clusterrun.errors import UsageError
from clusterrun.job.clusters.found import (
    WITHOUT_CLUSTER,
    DetectionContext,
    Found,
    Variables,
    node,
    unplaced,
)
from clusterrun.job.clusters.tasks import StartCommands, TaskNumbers, task_placement
from clusterrun.job.declarations import Setting
from clusterrun.job.values import Endpoint

_VOLCANO_HOSTS = re.compile(r"VC_(.+)_HOSTS")
AZUREML = StartCommands(
    "instance_count: {nodes}, with {size} processes in all",
    "process_count_per_instance: 1",
)


def hfai(v: Variables, _: DetectionContext) -> Found | None:
    """High-Flyer's HAI platform: pods of a task (HFAiLab/hai-platform f9119b1).

    RANK and WORLD_SIZE count machines (base_task.py, single_task_impl.py). MASTER_ADDR is "localhost"
    on the first machine and a name on the others, until a script resolves the name and writes the
    address to MASTER_IP and MASTER_ADDR (pod spec, waiting_for_master.sh). So MASTER_IP comes first.
    ``hfai python`` sets HFAI_SIMULATE to 1, on one machine.
    """
    is_pod = v.text("MARSV2_RANK", "MARSV2_TASK_ID", "MARSV2_NODE_NAME")
    if not is_pod and v["HFAI_SIMULATE"] != "1":
        return None
    address, half = v.text("MASTER_IP"), v.text("MARSV2_ASSIGNED_NUMA")
    found = node(
        v.require("WORLD_SIZE"), v.require("MARSV2_RANK", "RANK"), run_id=v.text("MARSV2_TASK_ID")
    )
    # The task shares each machine with another task, and has this half of it.
    if half and half.value not in {"0", "1"}:
        raise UsageError(
            f"{half.origin}: {half.value!r} is not one of a machine's two halves, 0 and 1",
            "set it to 0 or 1, or unset it",
        )
    return replace(
        found,
        master_addr=address,
        ignored_exports=("MASTER_ADDR",) if address else (),
        numa_node=Setting(int(half.value), half.origin) if half else None,
    )


def pai_dlc(v: Variables, context: DetectionContext) -> Found | None:
    """Alibaba's PAI-DLC: pods whose RANK and WORLD_SIZE count nodes.

    alibabacloud.com/help/en/pai/general-environment-variables (the page of 2024 does not have
    NPROC_PER_NODE, so older pods have none). A process with LOCAL_RANK is one of several on its node.
    On other machines many users export the same names; if WORLD_SIZE counts processes there, it
    differs from NNODES.
    """
    if not v.has_all("WORLD_SIZE", "RANK", "MASTER_ADDR") or v.get("LOCAL_RANK"):
        return None
    counts_nodes = v.get("NNODES") in {None, "", v["WORLD_SIZE"]}
    return counted_pods(v, context) if counts_nodes else None


def counted_pods(v: Variables, _: DetectionContext) -> Found:
    """Pods of PAI-DLC or AIHC that have only the variables that all platforms share.

    Baidu's AIHC: cloud.baidu.com/doc/AIHC/s/mm346i20k.
    """
    return node(v.require("WORLD_SIZE"), v.require("RANK"), nproc_per_node=v.gpus("NPROC_PER_NODE"))


def skypilot(v: Variables, _: DetectionContext) -> Found:
    """SkyPilot: one process per node (docs.skypilot.co, "SkyPilot environment variables")."""
    hosts = Setting(tuple(v.get("SKYPILOT_NODE_IPS", "").split()), "SKYPILOT_NODE_IPS")
    # Older versions set the list alone.
    nodes = v.number("SKYPILOT_NUM_NODES") or Setting(len(hosts.value), hosts.origin)
    found = node(
        nodes,
        v.require("SKYPILOT_NODE_RANK"),
        hosts=hosts,
        nproc_per_node=v.gpus("SKYPILOT_NUM_GPUS_PER_NODE"),
        run_id=v.text("SKYPILOT_TASK_ID"),
    )
    if len(hosts.value) != nodes.value:
        raise UsageError(
            f"{nodes.origin} is {nodes.value}, but {hosts.origin} lists {len(hosts.value)}",
            WITHOUT_CLUSTER,
        )
    return found


def sagemaker(v: Variables, _: DetectionContext) -> Found:
    """Amazon SageMaker: containers of a training job, ranked by the list of hosts.

    aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md; the toolkit ranks nodes the same way.
    """
    import msgspec

    text, own = v["SM_HOSTS"], v.text("SM_CURRENT_HOST")
    try:
        hosts = Setting(msgspec.json.decode(text, type=tuple[str, ...]), "SM_HOSTS")
    except (msgspec.MsgspecError, UnicodeEncodeError):
        raise UsageError(f"SM_HOSTS: {text!r} is not a list in JSON", WITHOUT_CLUSTER) from None
    if own is None or own.value not in hosts.value:
        own_host = f"is {own.value}" if own else "is not set"
        raise UsageError(
            f"SM_CURRENT_HOST {own_host}, but {hosts.origin} lists {', '.join(hosts.value)}",
            WITHOUT_CLUSTER,
        )
    return node(
        Setting(len(hosts.value), hosts.origin),
        Setting(hosts.value.index(own.value), own.origin),
        hosts=hosts,
        nproc_per_node=v.gpus("SM_NUM_GPUS"),
    )


def volcano(v: Variables, _: DetectionContext) -> Found:
    """Volcano: pods of a job with the plugins pytorch, svc and env (volcano-sh/volcano, plugins/).

    The plugin pytorch sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE (pods) and RANK (master 0, workers
    from 1). It requires svc, which lists the hosts of each kind of task, as in VC_WORKER_HOSTS. With
    svc and env alone, as on ModelArts, VC_TASK_INDEX is the rank if there is one kind of task.
    """
    lists = {
        name: tuple(text.split(","))
        for name, text in sorted(v.items())
        if _VOLCANO_HOSTS.fullmatch(name) and text
    }
    if not v.has_all("WORLD_SIZE", "RANK"):
        return _volcano_by_index(v, lists)
    nodes = v.require("WORLD_SIZE")
    masters_first = sorted(lists, key=lambda name: (name != "VC_MASTER_HOSTS", name))
    hosts = tuple(host for name in masters_first for host in lists[name])
    listed = Setting(hosts, ", ".join(lists)) if len(hosts) == nodes.value else None
    # The plugin also sets MASTER_ADDR, so the list of hosts is not needed for it.
    return replace(node(nodes, v.require("RANK"), hosts=listed), master_addr=None)


def _volcano_by_index(v: Variables, lists: Mapping[str, tuple[str, ...]]) -> Found:
    if len(lists) != 1:
        kinds = f"{len(lists)} kinds of tasks ({', '.join(lists)})" if lists else "no list of hosts"
        return unplaced(
            f"Volcano has set {kinds}, but no rank among all pods",
            "use its plugin pytorch, or set --nnodes, --node-rank and --master-addr",
        )
    ((origin, hosts),) = lists.items()
    rank = v.require("VC_TASK_INDEX", "VK_TASK_INDEX")
    return node(Setting(len(hosts), origin), rank, hosts=Setting(hosts, origin))


def paddle(v: Variables, _: DetectionContext) -> Found | None:
    """PaddleCloud, PaddleJob and paddle.distributed.launch: pods of a Paddle job.

    PaddleCloud sets PADDLE_TRAINERS, an address for each pod, and PADDLE_TRAINER_ID, the pod's rank
    (PaddlePaddle/Paddle 0189510, python/paddle/distributed/cloud_utils.py). The operator of a
    PaddleJob sets PADDLE_TRAINER_ENDPOINTS. The launcher of Paddle 2 reads PADDLE_MASTER,
    PADDLE_NNODES and PADDLE_RANK (launch/context/args_envs.py), and sets PADDLE_RANK_IN_NODE for its
    workers.
    """
    if v.text("PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK"):
        return None
    listed, master = v.text("PADDLE_TRAINERS", "PADDLE_TRAINER_ENDPOINTS"), v.text("PADDLE_MASTER")
    hosts = _hosts_of_endpoints(listed) if listed else None
    nodes = Setting(len(hosts.value), hosts.origin) if hosts else v.require("PADDLE_NNODES")
    found = node(
        nodes,
        v.number("PADDLE_TRAINER_ID", "PADDLE_RANK"),
        hosts=hosts,
        nproc_per_node=v.gpus("PADDLE_NPROC_PER_NODE"),
        run_id=v.text("PADDLE_JOB_ID"),
    )
    if master is None:
        return found
    endpoint = _endpoint(master.value, master.origin)
    return replace(
        found,
        master_addr=Setting(endpoint.host, master.origin),
        ports=Setting((endpoint.port,), master.origin) if endpoint.port else None,
    )


def _hosts_of_endpoints(listed: Setting[str]) -> Setting[tuple[str, ...]]:
    hosts = (_endpoint(each, listed.origin).host for each in listed.value.split(","))
    return Setting(tuple(dict.fromkeys(hosts)), listed.origin)


def _endpoint(text: str, origin: str) -> Endpoint:
    try:
        return Endpoint.parse(text.strip())
    except ValueError:
        raise UsageError(f"{origin}: {text!r} is not HOST or HOST:PORT", WITHOUT_CLUSTER) from None


def azureml(v: Variables, context: DetectionContext) -> Found | None:
    """AzureML's PyTorch jobs, and other platforms that give each process its RANK and LOCAL_RANK.

    learn.microsoft.com, "Distributed GPU training guide": MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK,
    LOCAL_RANK, NODE_RANK; WORLD_SIZE counts processes. The number of processes per node follows from
    AZUREML_NODE_COUNT, from LOCAL_WORLD_SIZE (Ray) or, except on node 0, from the ranks.
    """
    if not v.has_all("RANK", "WORLD_SIZE", "MASTER_ADDR") or v["WORLD_SIZE"] == "1":
        return None
    size, rank = v.require("WORLD_SIZE"), v.require("RANK")
    local_rank, node_rank = v.require("LOCAL_RANK"), v.number("NODE_RANK")
    nodes = v.number("AZUREML_NODE_COUNT") or context.nnodes
    local_size = v.number("LOCAL_WORLD_SIZE")
    if not local_size and nodes and nodes.value:
        local_size = Setting(size.value // nodes.value, f"{size.origin}, {nodes.origin}")
    if not local_size and node_rank and node_rank.value:
        per_node = max(1, (rank.value - local_rank.value) // node_rank.value)
        local_size = Setting(per_node, f"{rank.origin}, {node_rank.origin}")
    if not local_size:
        return unplaced(
            f"{size.origin} is {size.value} and {local_rank.origin} is {local_rank.value}: this"
            " is one of several processes, but the number of nodes is unknown",
            f"give the number of nodes:\n  {context.line.quoted('--nnodes', 'N')}\n"
            "or start a separate job in each process:\n"
            f"  {context.line.quoted('--cluster', 'none')}",
        )
    return task_placement(
        TaskNumbers(AZUREML, rank, size, local_rank, local_size, nodes, node_rank)
    )
