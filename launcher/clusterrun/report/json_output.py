"""What ``--json`` prints of a dry run and of a machine: one JSON object for programs."""

import json
from collections.abc import Mapping, Sequence

from clusterrun.domain.machine import Gpu, Machine, NumaNode
from clusterrun.domain.plan import NodePlan, WorkerPlan
from clusterrun.job.job import Job
from clusterrun.report.job_values import job_values
from clusterrun.report.worker_table import local_rank_of


def dry_run_json(job: Job, plan: NodePlan) -> str:
    """Return the job's values and the workers; ``assumed``: other nodes are taken to be like this one."""
    values = {
        name: {"value": value, "origin": origin}
        for name, value, origin in job_values(job, plan.world)
    }
    content = {
        "job": values,
        "workers": [_worker(plan, worker) for worker in plan.workers],
        "assumed": plan.world.nodes > 1,
    }
    return json.dumps(content, indent=2)


def topo_json(machine: Machine, plan: NodePlan) -> str:
    """Return the machine and the workers; CPUs and cores are lists in the kernel's form."""
    visible = set(map(identity, machine.visible))
    workers = [_worker(plan, worker) for worker in plan.workers]
    content = {
        "allowed_cpus": str(machine.allowed),
        "cpu_quota": machine.cpu_quota,
        "packages": [str(cpus) for cpus in machine.packages],
        "nodes": [_node(node) for node in machine.nodes],
        "cores": [str(cpus) for cpus in machine.cores],
        "cores_known": machine.cores_known,
        "caches": [str(cpus) for cpus in machine.caches],
        "gpus": [
            {
                **_gpu(gpu),
                "vendor": gpu.vendor,
                "model": gpu.model,
                "parent": gpu.parent,
                "visible": identity(gpu) in visible,
            }
            for gpu in machine.gpus
        ],
        "sites": [{"address": gpu.bdf, "numa_node": gpu.numa_node} for gpu in machine.pci_gpus],
        "visible": [gpu.uuid or gpu.bdf for gpu in machine.visible],
        "visible_origin": machine.visible_origin,
        "workers": [
            {name: value for name, value in worker.items() if name != "env"} for worker in workers
        ],
        "remarks": list(plan.remarks),
    }
    return json.dumps(content, indent=2)


def identity(gpu: Gpu) -> tuple[str, int, str, str]:
    """Return what two descriptions of one GPU have in common, wherever it is mapped to."""
    return gpu.vendor, gpu.index, gpu.bdf, gpu.uuid


def _worker(plan: NodePlan, worker: WorkerPlan) -> Mapping[str, object]:
    port = {} if "MASTER_PORT" in worker.env else {"MASTER_PORT": None}
    memory = worker.memory
    return {
        "rank": worker.rank,
        "local_rank": int(local_rank_of(worker)),
        "gpu": _only([gpu.index for gpu in worker.gpus]),
        "gpus": [_gpu(gpu) for gpu in worker.gpus],
        "numa_node": _only(worker.numa_nodes),
        "numa_nodes": worker.numa_nodes,
        "cpus": None if worker.cpus is None else str(worker.cpus),
        "memory": memory and {"mode": memory.mode, "numa_nodes": memory.nodes},
        "env": {**plan.env, **worker.env, **port},
        "command": list(plan.command_of(worker)),
        "remark": "; ".join(filter(None, (worker.local_rank_reason, worker.remark))),
    }


def _only(numbers: Sequence[int]) -> int | None:
    return numbers[0] if len(numbers) == 1 else None


def _gpu(gpu: Gpu) -> Mapping[str, object]:
    return {
        "index": gpu.index,
        "address": gpu.bdf,
        "uuid": gpu.uuid,
        "numa_node": gpu.numa_node,
        "told_by": gpu.node_source,
    }


def _node(node: NumaNode) -> Mapping[str, object]:
    return {
        "id": node.id,
        "cpus": str(node.cpus),
        "memory": node.memory,
        "has_memory": node.has_memory,
        "distances": {str(other): distance for other, distance in node.distances.items()},
    }
