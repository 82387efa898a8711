"""Jobs, machines, worlds and plans for tests; whatever a test does not give is as usual."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.cpuset import CpuSet
from clusterrun.job.job import JOB_SUBJECTS, Given, Job, ProgramKind, WorkerProgram
from clusterrun.job.options import OPTIONS, NumaBinding, NumaMemory
from clusterrun.job.services import Service
from clusterrun.job.values import NodeRange
from clusterrun.machine.machine import Gpu, Machine, NumaNode, PciGpu
from clusterrun.planning.binding import bind_own_workers
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.placement import BindingRequest, Placement
from clusterrun.planning.plan import NodePlan, WorkerPlan, World
from clusterrun.planning.variables import user_environment
from clusterrun.planning.worker_slots import worker_slots_for
from msgspec.structs import replace

SCRIPT = WorkerProgram(ProgramKind.SCRIPT, "train.py", ("--lr", "1"))


def job(**values: Any) -> Job:
    """Return a job; ``values`` by the names of options and fields come from "the test"."""
    origins = dict.fromkeys(values, "the test")
    origins |= {f"env.{name}": "--env" for name in values.get("env", {})}
    most = values.get("nnodes", 1)
    nnodes = NodeRange(values.pop("fewest_nodes", most), most)
    env = tuple(values.pop("env", {}).items())
    usual = {"cluster": "none", "run_id": "run", "python": "python"}
    options = {**usual, **values, "nnodes": nnodes, "env": env}
    subjects: dict[str, Any] = {
        subject.__name__.lower(): subject(
            **{name: options[name] for name in subject.__struct_fields__ if name in options}
        )
        for subject in JOB_SUBJECTS
    }
    plain: dict[str, Any] = {
        "script": SCRIPT,
        "signals_to_handle": OPTIONS["signals_to_handle"].default,
    }
    own = {name: value for name, value in values.items() if name in Job.__struct_fields__}
    given = Given(
        run_id="run_id" in values,
        python="python" in values,
        signals_to_handle="signals_to_handle" in values,
    )
    return Job(**subjects, **{**plain, **own}, given=given, origins=origins)


def service(name: str = "server", command: str = "serve", *args: str, **values: Any) -> Service:
    """Return a service of one worker on each node; ``values`` by the names of its fields."""
    program = WorkerProgram(ProgramKind.EXECUTABLE, command, args)
    usual = {"name": name, "where": f"rl.yaml:4 services.{name}", "program": program}
    return Service(**{**usual, **values})


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
        packages=tuple(
            CpuSet.parse(text) for text in ([str(everything)] if packages is None else packages)
        ),
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
        visible_warning="",
        cpu_quota=quota,
    )


def gpu(index: int, node: int | None) -> Gpu:
    """Return GPU ``index`` that is local to ``node``."""
    source = "unknown" if node is None else "sysfs numa_node"
    return Gpu(index, _address(index), f"GPU-{index}", node, source, vendor="nvidia")


def _address(index: int) -> str:
    return f"0000:{16 * (index + 1):02x}:00.0"


class BindingOptions(NamedTuple):
    """The options of a job for binding."""

    mode: NumaBinding
    memory: NumaMemory = NumaMemory.NONE
    gpus_per_worker: int | None = None


def bind(options: BindingOptions, here: Machine, workers: int) -> tuple[Placement, ...]:
    """Return the workers of a job on this node."""
    slots = worker_slots_for(job(gpus_per_worker=options.gpus_per_worker), here, workers)
    return bind_own_workers(here, BindingRequest(slots, options.mode, options.memory))


def masks(here: Machine, mode: NumaBinding, workers: int) -> list[str | None]:
    """Return the CPUs of each worker in list form; None for a worker that is not bound."""
    found = bind(BindingOptions(mode), here, workers)
    return [None if placement.cpus is None else str(placement.cpus) for placement in found]


def planned(
    spec: Job,
    here: Machine,
    size: int | World,
    environ: Mapping[str, str] | None = None,
    *,
    unset: Sequence[str] = (),
    error_files: str | None = None,
) -> NodePlan:
    """Return the plan of ``size`` workers on one node, or of this node of a world."""
    where = world(size) if isinstance(size, int) else size
    before = user_environment(spec, environ or {}, unset)
    return plan_node(
        spec,
        here,
        where,
        unset=unset,
        error_files=error_files,
        before=before,
        slots=worker_slots_for(spec, here, where.local_size),
    )


def plan_of(size: int, *, attempt: int = 0, first_rank: int = 0) -> NodePlan:
    """Return the plan of ``size`` workers that run nothing in particular."""
    return NodePlan(
        world=replace(world(size, attempt=attempt), first_rank=GlobalRank(first_rank)),
        host="node7",
        env={},
        unset=(),
        workers=tuple(worker_of(local_rank, first_rank) for local_rank in range(size)),
        warnings=(),
    )


def worker_of(local_rank: int, first_rank: int = 0, **values: Any) -> WorkerPlan:
    """Return the plan of one of these workers; ``values`` are fields of it."""
    usual = WorkerPlan(
        rank=GlobalRank(first_rank + local_rank),
        local_rank=LocalRank(local_rank),
        gpus=(),
        numa_nodes=(),
        cpus=None,
        memory=None,
        env={},
        warning="",
        command=("python", "-u", "train.py"),
        runs_python=True,
    )
    return replace(usual, **values)
