"""Plans the programs of a job with services: their workers, GPUs, ports and addresses."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count

from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank, counted
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import MAIN, Job, WorkerProgram
from clusterrun.job.program import COMMAND_LINE
from clusterrun.job.services import WORLD_VARIABLES, Service, expand_variables
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.planning import variables
from clusterrun.planning.node_plan import worker_plan
from clusterrun.planning.placement import Placement
from clusterrun.planning.plan import ProgramOnNode, ProgramWorld, WorkerPlan, WorkerSlot, World
from clusterrun.planning.worker_slots import first_slice, local_size

MAX_LIST_LENGTH = 100_000
"""Characters of a variable with a list of addresses. execve takes 131,072 (MAX_ARG_STRLEN)."""

LATE_VARIABLES = frozenset({"PORT", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"})
"""Known only once the nodes have joined, like the variables that begin with CLUSTERRUN_."""


def known_node_rank(job: Job) -> int:
    """Return the rank of this node, on which its services depend.

    Raises:
        UsageError: the rank is not known before the nodes have joined.

    """
    if job.nnodes == 1:
        return 0
    if job.workers.node_rank is None:
        raise UsageError(
            f"{job.services[0].where}: this node's services depend on its rank, which is not set",
            "give --node-rank",
        )
    return job.workers.node_rank


def service_slots(job: Job, machine: Machine) -> list[WorkerSlot]:
    """Return the workers of services on this node, in the order of the file.

    Each service gets the last GPUs that are left, or those that it names.

    Raises:
        UsageError: there are too few GPUs.

    """
    rank = known_node_rank(job)
    here = [each for each in job.services if rank in each.nodes(job.nnodes)]
    with_gpus = next((each for each in here if each.gpus_per_worker or each.devices), None)
    if with_gpus is not None and first_slice(machine):
        raise UsageError(
            f"{with_gpus.where}: a GPU of this node is split into slices (MIG), which can't be"
            " divided among the programs of one job",
            "start the programs as jobs of their own, each with its slices",
        )
    free = machine.visible
    found = []
    for service in here:
        workers, each = service.nproc_per_node, service.gpus_per_worker
        if service.devices:
            own = _chosen(service, machine)
            each = len(own) // workers
        else:
            own = free[len(free) - workers * each :] if workers * each <= len(free) else ()
            free = free[: len(free) - len(own)]
        if len(own) < workers * each or (service.devices and len(own) != workers * each):
            raise _too_few(service, here, machine)
        blocks = (own[at * each :][:each] for at in range(workers))
        found += [WorkerSlot(block, program=service.name) for block in blocks]
    return found


def _chosen(service: Service, machine: Machine) -> tuple[Gpu, ...]:
    known = {name: gpu for gpu in machine.visible for name in (str(gpu.index), gpu.uuid)}
    missing = [name for name in service.devices if name not in known]
    if missing:
        raise UsageError(
            f"{service.origin('devices')}: GPU {missing[0]} is not visible on this node:"
            f" {counted(len(machine.visible), 'GPU')} are ({machine.visible_origin})",
            "name GPUs as CUDA numbers them, or by UUID",
        )
    return tuple(known[name] for name in service.devices)


def _too_few(service: Service, here: Sequence[Service], machine: Machine) -> UsageError:
    if service.devices:
        return UsageError(
            f"{service.origin('devices')}: {counted(len(service.devices), 'GPU')} can't be divided"
            f" among {service.nproc_per_node} workers",
            "give each worker the same number of GPUs",
        )
    wanted = ", ".join(
        f"{each.name} {each.nproc_per_node * each.gpus_per_worker} ({each.where})"
        for each in here
        if each.gpus_per_worker and not each.devices
    )
    return UsageError(
        f"{service.origin('gpus_per_worker')}: the services of this node need more GPUs than the"
        f" {len(machine.visible)} that are visible: {wanted}",
        "give fewer, or place them on other nodes: nnodes, node_ranks",
    )


def main_workers(job: Job, machine: Machine, services: Sequence[WorkerSlot]) -> int:
    """Return how many workers the main program has on this node; 0 if no GPU is left, or it uses other nodes.

    Raises:
        UsageError: as for ``local_size``; or the node has no program, or the job has no main program.

    """
    rank, taken = known_node_rank(job), len({gpu for slot in services for gpu in slot.gpus or ()})
    if job.main_nodes is not None:
        is_here = rank in job.main_nodes
    else:
        visible = len(machine.visible)
        is_here = taken < visible or not visible or job.placing.gpus_per_worker == 0
    if is_here:
        return local_size(job, machine, taken)
    if not services:
        raise UsageError(
            f"node {rank} has no program: node_ranks is {job.main_nodes}, and it has no service",
            f"reduce nnodes ({job.setting('nnodes')}), or give this node a service",
        )
    if job.nnodes == 1:
        raise UsageError(
            f"{job.services[0].where}: the services have all {counted(len(machine.visible), 'GPU')},"
            " and the main program has no other node",
            "give them fewer, or add gpus_per_worker: 0 at the top level if the main program"
            " needs none",
        )
    return 0


def assumed_programs(job: Job, machine: Machine) -> tuple[ProgramWorld, ...]:
    """Return the programs before rendezvous, assuming that all nodes are like this one."""
    counts: dict[str, dict[int, int]] = {MAIN: {}}
    for each in job.services:
        counts[each.name] = dict.fromkeys(each.nodes(job.nnodes), each.nproc_per_node)
    # Nodes with the same services have as many main workers.
    known: dict[tuple[str, ...], int] = {}
    for rank in range(job.nnodes):
        there = tuple(name for name, by_node in counts.items() if rank in by_node)
        if job.main_nodes is None or rank in job.main_nodes:
            if there not in known:
                known[there] = _main_workers_on(rank, job, machine)
            counts[MAIN][rank] = known[there]
    found, first = [], 0
    for name, by_node in counts.items():
        nodes = (
            ProgramOnNode(NodeRank(rank), "", count) for rank, count in by_node.items() if count
        )
        program = ProgramWorld(name, first, tuple(nodes))
        found.append(program)
        first += program.size
    return tuple(found)


def _main_workers_on(rank: int, job: Job, machine: Machine) -> int:
    """Return how many workers the main program has on a node; 0 if the node can't be like this one."""
    there = replace(job, workers=replace(job.workers, node_rank=NodeRank(rank)))
    try:
        return main_workers(there, machine, service_slots(there, machine))
    except UsageError:
        return 0


def world_of(world: World, program: ProgramWorld) -> World:
    """Return the world of one program: only its nodes and ranks are counted."""
    index, first = program.position_on(world.node_rank)
    here, master = program.nodes[index], program.nodes[0]
    is_main = program.name == MAIN and not master.node_rank
    return replace(
        world,
        node_rank=NodeRank(index),
        nodes=len(program.nodes),
        first_rank=GlobalRank(first),
        local_size=here.workers,
        size=program.size,
        first_role_rank=GlobalRank(first),
        role_size=program.size,
        # Before the nodes have joined, only node 0's address and the main program's port may be known.
        master_addr=master.address or ("" if master.node_rank else world.master_addr),
        master_port=master.master_port or (world.master_port if is_main else None),
    )


def addresses_of(programs: Sequence[ProgramWorld]) -> dict[str, str]:
    """Return the variables with the addresses of all programs; {} while ports are unknown."""
    found: dict[str, str] = {}
    for program in programs:
        if not program.nodes or not all(node.ports for node in program.nodes):
            continue
        addresses = [f"{_host(node)}:{port}" for node in program.nodes for port in node.ports]
        urls = [f"http://{address}" for address in addresses]
        master = program.nodes[0]
        texts = {
            "ADDR": addresses[0],
            "URL": urls[0],
            "ADDRS": ",".join(addresses),
            "URLS": ",".join(urls),
            "HOSTS": ",".join(node.address for node in program.nodes),
            "MASTER": f"{_host(master)}:{master.master_port}",
        }
        name = program.name.upper()
        found |= {
            f"CLUSTERRUN_{name}_{what}": text
            for what, text in texts.items()
            if len(text) <= MAX_LIST_LENGTH
        }
    return found


def _host(node: ProgramOnNode) -> str:
    return f"[{node.address}]" if ":" in node.address else node.address


def worker_plans(  # noqa: PLR0913 - as ``plan_node``
    job: Job,
    machine: Machine,
    world: World,
    own: Sequence[tuple[WorkerSlot, Placement]],
    *,
    error_files: str | None,
    env: Mapping[str, str],
) -> tuple[WorkerPlan, ...]:
    """Return the workers of this node: the main program's, then each service's.

    ``own`` are the slots of this agent, in this order. ``env`` is the environment of all workers.

    Raises:
        UsageError: a program refers to a variable that is not set.

    """
    programs: dict[str | None, ProgramWorld] = {each.name: each for each in world.programs}
    services: dict[str | None, Service] = {each.name: each for each in job.services}
    addresses = addresses_of(world.programs)
    later = () if addresses else LATE_VARIABLES
    # An inherited MASTER_ADDR is not the worker's.
    env = {name: text for name, text in env.items() if name not in later}
    gpus_of: dict[str | None, list[Gpu]] = defaultdict(list)
    for slot, placement in own:
        gpus_of[slot.program] += placement.gpus
    of_services = {gpu for name, gpus in gpus_of.items() if name in services for gpu in gpus}
    rest = [gpu for gpu in machine.visible if gpu not in of_services]
    indices: dict[str | None, Iterator[int]] = defaultdict(count)
    found: list[WorkerPlan] = []
    for at, (slot, placement) in enumerate(own):
        program, service = programs[slot.program], services.get(slot.program)
        index, local_rank = next(indices[slot.program]), LocalRank(at)
        number = GlobalRank(program.first + program.position_on(world.node_rank)[1] + index)
        visible: Sequence[Gpu] = rest
        if service is not None:
            visible = gpus_of[service.name] if service.world else placement.gpus
        own_env = {
            **_variables(world, program, index, service),
            **variables.file_variables(world, number, local_rank, error_files),
            **_visible_gpus(machine, visible, service, env),
            **addresses,
        }
        if service is None:
            own_env |= variables.own_gpus_variables(job, machine, placement.gpus, index, env)
        own_env = {**_own_env(job, service, {**env, **own_env}, later), **own_env}
        script = _program(job, service, {**env, **own_env}, later)
        found.append(worker_plan(job, number, local_rank, placement, script, own_env, env, service))
    return tuple(found)


def _variables(
    world: World, program: ProgramWorld, index: int, service: Service | None
) -> dict[str, str]:
    """Return torchrun's variables for the worker with this index on its node, counted in its program."""
    found = variables.worker_variables(world_of(world, program), LocalRank(index), None)
    if service is not None:
        found["ROLE_NAME"] = service.name
        if not service.world:
            found = {name: text for name, text in found.items() if name not in WORLD_VARIABLES}
    if not found["MASTER_ADDR"]:
        del found["MASTER_ADDR"]
    ports = program.nodes[program.position_on(world.node_rank)[0]].ports
    return {**found, "PORT": str(ports[index])} if ports else found


def _visible_gpus(
    machine: Machine, gpus: Sequence[Gpu], service: Service | None, env: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that make only ``gpus`` visible to a worker.

    Raises:
        UsageError: the service sets one of these variables itself.

    """
    found = variables.visible_gpus_variables(machine, gpus, env)
    other = next((name for name in found if service and name in service.env), None)
    if service is None or other is None:
        return found
    raise UsageError(
        f"{service.where}.env.{other}: {other} is a variable that clusterrun sets for each worker"
        " of a job with services",
        "remove it; gpus_per_worker or devices choose the GPUs of a service",
    )


def _own_env(
    job: Job, service: Service | None, environment: Mapping[str, str], later: Collection[str]
) -> dict[str, str]:
    """Return the variables of the job and of a service that are not the same for all workers.

    In the order of the job file: each may refer to those before.
    """
    texts = [(name, Setting(text, job.origin(f"env.{name}"))) for name, text in job.late_env]
    if service is not None:
        texts += [
            (name, Setting(text, f"{service.where}.env.{name}"))
            for name, text in service.env.items()
        ]
    known = dict(environment)
    for name, text in texts:
        known[name] = expand_variables(text.value, known, text.origin, later)
    return {name: known[name] for name, _ in texts}


def _program(
    job: Job, service: Service | None, environment: Mapping[str, str], later: Collection[str]
) -> WorkerProgram:
    """Return the program of a service's worker, or of the main program's, with ``$NAME`` expanded.

    A program from the command line, or one that a shell runs, is not expanded again.
    """
    program = job.script if service is None else service.program
    origin = job.origin("script") if service is None else service.where
    if origin == COMMAND_LINE or (service is not None and service.in_shell):
        return program
    name, *args = (
        expand_variables(word, environment, origin, later) for word in (program.name, *program.args)
    )
    return WorkerProgram(program.kind, name, tuple(args))
