"""Jobs, machines, worlds and plans for tests; whatever a test does not give is as usual."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.door import (
    BindingOptions,
    CpuSet,
    ElasticJoin,
    Fact,
    Given,
    GlobalRank,
    Gpu,
    JobSpec,
    Machine,
    NodePlan,
    NodeRank,
    NumaBinding,
    NumaMemory,
    NumaNode,
    OnHang,
    PciGpu,
    Program,
    ProgramKind,
    StartMethod,
    WorkerCount,
    World,
    place,
    plan_node,
)

SCRIPT = Program(ProgramKind.SCRIPT, "train.py", ("--lr", "1"))


def job(**values: Any) -> JobSpec:
    """Return a job; ``values`` by field name, without their facts, come from "the test"."""
    usual: dict[str, Any] = {
        "nnodes": 1,
        "fewest_nodes": values.get("nnodes", 1),
        "last_call_timeout": 30.0,
        "node_rank": None,
        "nproc_per_node": WorkerCount.PER_GPU,
        "tasks": None,
        "hosts": (),
        "cluster": "none",
        "numa_node": None,
        "unclear": "",
        "master_addr": None,
        "master_port": None,
        "port_candidates": (),
        "rdzv_endpoint": None,
        "base_port": 6170,
        "rdzv_timeout": 600.0,
        "token": None,
        "run_id": "run",
        "heartbeat_timeout": 15.0,
        "hang_timeout": None,
        "on_hang": OnHang.REPORT,
        "max_restarts": 0,
        "no_restart_exit_codes": (),
        "no_fail_fast": False,
        "spares": 0,
        "elastic_multiple": 1,
        "elastic_join": ElasticJoin.RESTART,
        "max_node_losses": None,
        "exclude_after": 0,
        "check_nodes": False,
        "rejoin_timeout": 0.0,
        "shutdown_timeout": 25.0,
        "suspend_signal": None,
        "suspend_grace": 30.0,
        "suspend_exit_code": 75,
        "suspend_before": None,
        "suspend_hook": (),
        "requeue": False,
        "scheduler": None,
        "ends_at": None,
        "resumed": 0,
        "kept_attempts": 0,
        "debug": None,
        "pdb": False,
        "profile": None,
        "contain": False,
        "exec": False,
        "numa_binding": NumaBinding.AUTO,
        "numa_memory": NumaMemory.NONE,
        "numa_map": (),
        "numa_strict": False,
        "devices": (),
        "gpus_per_worker": None,
        "virtual_local_rank": False,
        "role": "default",
        "signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "pass_local_rank": "",
        "start_method": StartMethod.AUTO,
        "preload": "auto",
        "keep_warm": 0.0,
        "python": "python",
        "log_dir": None,
        "redirects": None,
        "tee": None,
        "local_ranks_filter": None,
        "ranks": None,
        "log_line_prefix_template": None,
        "is_merged": False,
        "coloured": False,
        "duplicate_stdout_filters": (),
        "duplicate_stderr_filters": (),
        "workerlog": False,
        "events": None,
        "program": SCRIPT,
        "as_torchrun": False,
    }
    env = {name: Fact(value, "--env") for name, value in values.pop("env", {}).items()}
    facts = {
        name: Fact(values.get(name, value), "the test" if name in values else "default")
        for name, value in usual.items()
    }
    given = Given(
        run_id="run_id" in values,
        python="python" in values,
        signals_to_handle="signals_to_handle" in values,
    )
    return JobSpec(env=env, given=given, **facts)


def world(size: int, *, attempt: int = 0, master_port: int | None = 29500) -> World:
    """Return the world of ``size`` workers on one node."""
    return World(
        run_id="run",
        attempt=attempt,
        node_rank=NodeRank(0),
        nodes=1,
        first_rank=GlobalRank(0),
        local_size=size,
        size=size,
        first_role_rank=GlobalRank(0),
        role_size=size,
        master_addr="127.0.0.1",
        master_port=master_port,
    )


def machine(
    nodes: Mapping[int, str],
    gpus: Sequence[int | None] = (),
    *,
    allowed: str | None = None,
    packages: Sequence[str] | None = None,
    cores: Sequence[str] = (),
    distances: Mapping[int, Mapping[int, int]] | None = None,
    visible: Sequence[int] | None = None,
    cores_known: bool = True,
    caches: Sequence[str] = (),
    pci_gpus: Sequence[int | None] | None = None,
    without_memory: Sequence[int] = (),
    quota: float | None = None,
) -> Machine:
    """Return a machine.

    Args:
        nodes: CPUs by node id.
        gpus: the node of each GPU; None where it isn't known.
        allowed: CPUs that the job may use; None: all.
        packages: CPUs of each; None: one of all CPUs.
        cores: siblings; () where every CPU is a core.
        distances: from node to node.
        visible: indices of the GPUs that are visible; None: all.
        cores_known: whether /sys tells which CPUs are one core.
        caches: CPUs of each last-level cache.
        pci_gpus: the node of each GPU on the bus; None: the GPUs that we may open are all.
        without_memory: ids of the nodes that have none.
        quota: CPUs' worth of time.

    """
    everything = CpuSet.union_of(CpuSet.parse(cpus) for cpus in nodes.values())
    known = tuple(gpu(index, node) for index, node in enumerate(gpus))
    between = distances or {}
    return Machine(
        host="node7",
        allowed=everything if allowed is None else CpuSet.parse(allowed),
        nodes=tuple(
            NumaNode(
                number, CpuSet.parse(cpus), between.get(number, {}), number not in without_memory
            )
            for number, cpus in nodes.items()
        ),
        packages=tuple(CpuSet.parse(text) for text in packages or [str(everything)]),
        cores=tuple(CpuSet.parse(text) for text in cores or map(str, everything)),
        cores_known=cores_known,
        caches=tuple(CpuSet.parse(text) for text in caches),
        gpus=known,
        pci_gpus=tuple(
            PciGpu(_address(index), node)
            for index, node in enumerate(gpus if pci_gpus is None else pci_gpus)
        ),
        visible=known if visible is None else tuple(known[index] for index in visible),
        visible_origin="NVML",
        visible_remark="",
        cpu_quota=quota,
    )


def gpu(index: int, node: int | None) -> Gpu:
    """Return GPU ``index`` that is local to ``node``."""
    source = "unknown" if node is None else "sysfs numa_node"
    return Gpu(index, _address(index), f"GPU-{index}", node, source, vendor="nvidia")


def _address(index: int) -> str:
    return f"0000:{16 * (index + 1):02x}:00.0"


def masks(here: Machine, mode: NumaBinding, workers: int) -> list[str | None]:
    """Return the CPUs of each worker in list form; None for a worker that is not bound."""
    found = place(BindingOptions(mode), here, workers)
    return [None if placement.cpus is None else str(placement.cpus) for placement in found]


def planned(
    spec: JobSpec,
    here: Machine,
    size: int | World,
    environ: Mapping[str, str] | None = None,
    *,
    unset: Sequence[str] = (),
    error_files: str | None = None,
) -> NodePlan:
    """Return the plan of ``size`` workers on one node, or of this node of a world."""
    where = world(size) if isinstance(size, int) else size
    return plan_node(spec, here, where, unset=unset, error_files=error_files, environ=environ or {})
