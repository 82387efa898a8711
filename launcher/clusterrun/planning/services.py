"""The programs of a job with services on one node: their workers, GPUs, ports and names. Pure."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count

from msgspec.structs import replace

from clusterrun.bounds import GlobalRank, LocalRank, NodeRank, counted
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import MAIN, Job, ProgramKind, WorkerProgram
from clusterrun.job.program import COMMAND_LINE
from clusterrun.job.services import SHELL, Service
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.planning import variables
from clusterrun.planning.node_plan import command_of
from clusterrun.planning.placement import Placement
from clusterrun.planning.plan import ProgramOnNode, ProgramWorld, WorkerPlan, WorkerSlot, World
from clusterrun.planning.worker_slots import first_slice, local_size

MAX_LIST_LENGTH = 100_000
"""Characters of a variable that lists addresses: execve takes 131,072 (MAX_ARG_STRLEN)."""

KNOWN_LATER = frozenset({"PORT", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"})
"""Variables that are known only once the nodes have joined, beside those that begin with CLUSTERRUN_."""

TYPED = ("--env", "CLUSTERRUN_ENV", "PET_ENV")
"""Where a shell has replaced $NAME already."""

WORLD_VARIABLES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
"""Variables that a service has only with ``world: true``: libraries form a group of processes with them."""

_REFERENCE = re.compile(r"\$(?:\{(\w+)\}|(\w+)|(\$))")


def with_inherited_values(job: Job, inherited: Mapping[str, str]) -> Job:
    """Return the job where ``PATH: /x:$PATH`` in its variables has the value that is inherited."""
    env = (
        (name, _with_old_value(name, text, inherited[name]))
        if name in inherited and job.origin(f"env.{name}") not in TYPED
        else (name, text)
        for name, text in job.program.env
    )
    return replace(job, program=replace(job.program, env=tuple(env)))


def _with_old_value(name: str, text: str, old: str) -> str:
    # Its own dollars are not references.
    return re.sub(rf"\$(?:{name}\b|{{{name}}})", lambda _: old.replace("$", "$$"), text)


def known_node_rank(job: Job) -> int:
    """Return the rank of this node, whose services depend on it.

    Raises:
        UsageError: it is not known before the nodes have joined.

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
    """Return the workers of services on this node, in the order of the file: they have the last GPUs that are left.

    Raises:
        UsageError: there are fewer GPUs than they ask for.

    """
    rank = known_node_rank(job)
    here = [each for each in job.services if rank in each.nodes(job.nnodes)]
    with_gpus = next((each for each in here if each.gpus_per_worker or each.devices), None)
    if with_gpus is not None and first_slice(machine):
        raise UsageError(
            f"{with_gpus.where}: a GPU of this node is split into slices (MIG), which programs of one"
            " job can't share out",
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
            f"{service.origin('devices')}: GPU {missing[0]} is not visible here:"
            f" {counted(len(machine.visible), 'GPU')} are ({machine.visible_origin})",
            "name GPUs as CUDA numbers them, or by UUID",
        )
    return tuple(known[name] for name in service.devices)


def _too_few(service: Service, here: Sequence[Service], machine: Machine) -> UsageError:
    if service.devices:
        return UsageError(
            f"{service.origin('devices')}: {counted(len(service.devices), 'GPU')} can't be divided"
            f" among {service.nproc_per_node} workers",
            "give as many for each",
        )
    wanted = ", ".join(
        f"{each.name} {each.nproc_per_node * each.gpus_per_worker} ({each.where})"
        for each in here
        if each.gpus_per_worker and not each.devices
    )
    return UsageError(
        f"{service.origin('gpus_per_worker')}: the services of this node want more GPUs than the"
        f" {len(machine.visible)} that are visible: {wanted}",
        "give fewer, or place them on other nodes: nnodes, node_ranks",
    )


def main_workers(job: Job, machine: Machine, services: Sequence[WorkerSlot]) -> int:
    """Return how many workers the main program has on this node; 0: no GPU is left, or it has others.

    Raises:
        UsageError: as ``local_size``; or the node has no program at all, or the job no main program.

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


def assumed_programs(job: Job, workers: int) -> tuple[ProgramWorld, ...]:
    """Return the programs as far as the job file says: every node has as many main ``workers``.

    Where this one has none, the others may have any number, and are taken to have one each.
    """
    main = [rank for rank in range(job.nnodes) if job.main_nodes is None or rank in job.main_nodes]
    here = known_node_rank(job)
    counts = {MAIN: {rank: workers or int(rank != here) for rank in main}}
    for each in job.services:
        counts[each.name] = dict.fromkeys(each.nodes(job.nnodes), each.nproc_per_node)
    found, first = [], 0
    for name, by_node in counts.items():
        nodes = (
            ProgramOnNode(NodeRank(rank), "", count) for rank, count in by_node.items() if count
        )
        program = ProgramWorld(name, first, tuple(nodes))
        found.append(program)
        first += program.size
    return tuple(found)


def world_of(world: World, program: ProgramWorld) -> World:
    """Return the world as the workers of one program count it: its own nodes and ranks."""
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
        master_addr=master.address or world.master_addr,
        # Before the nodes have joined, that of the main program may be set.
        master_port=master.master_port or (world.master_port if is_main else None),
    )


def addresses_of(programs: Sequence[ProgramWorld]) -> dict[str, str]:
    """Return the variables by which every worker finds all programs; {} while ports are unknown."""
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


def worker_plans(  # noqa: PLR0913 - as a plan
    job: Job,
    machine: Machine,
    world: World,
    own: Sequence[tuple[WorkerSlot, Placement]],
    *,
    error_files: str | None,
    env: Mapping[str, str],
) -> tuple[WorkerPlan, ...]:
    """Return the workers of this node: those of the main program, then those of each service.

    ``own`` are the slots of this agent, in this order. ``env`` is the environment that all workers have.

    Raises:
        UsageError: a variable that a program names is not set.

    """
    programs: dict[str | None, ProgramWorld] = {each.name: each for each in world.programs}
    services: dict[str | None, Service] = {each.name: each for each in job.services}
    addresses = addresses_of(world.programs)
    later = () if addresses else KNOWN_LATER
    gpus_of: dict[str | None, list[Gpu]] = defaultdict(list)
    for slot, placement in own:
        gpus_of[slot.program] += placement.gpus
    of_services = {gpu for name, gpus in gpus_of.items() if name in services for gpu in gpus}
    rest = [gpu for gpu in machine.visible if gpu not in of_services]
    indices: dict[str | None, Iterator[int]] = defaultdict(count)
    found: list[WorkerPlan] = []
    for local_rank, (slot, placement) in enumerate(own):
        program, service = programs[slot.program], services.get(slot.program)
        index = next(indices[slot.program])
        number = program.first + program.position_on(world.node_rank)[1] + index
        seen: Sequence[Gpu] = rest
        if service is not None:
            seen = gpus_of[service.name] if service.world else placement.gpus
        own_env = {
            **_variables(world, program, index, service),
            **variables.files_of(world, number, LocalRank(local_rank), error_files),
            **_seen(machine, seen, service, env),
            **addresses,
        }
        if service is None:
            own_env |= variables.own_gpus_variables(job, machine, placement.gpus, index, env)
        own_env = {**_own_env(job, service, {**env, **own_env}, later), **own_env}
        script = _program(job, service, {**env, **own_env}, later)
        python = (service and service.python) or job.program.python
        found.append(
            WorkerPlan(
                rank=GlobalRank(number),
                local_rank=LocalRank(local_rank),
                gpus=placement.gpus,
                numa_nodes=placement.numa_nodes,
                cpus=placement.cpus,
                memory=placement.memory,
                env=own_env,
                warning=placement.warning,
                command=command_of(script, python),
                runs_python=script.kind is not ProgramKind.EXECUTABLE,
                service=service,
                needs_ras_port=variables.needs_ras_port(job, placement.gpus, {**env, **own_env}),
            )
        )
    return tuple(found)


def _variables(
    world: World, program: ProgramWorld, index: int, service: Service | None
) -> dict[str, str]:
    """Return what the worker with this index on its node gets: torchrun's, counted in its program."""
    found = variables.worker_variables(world_of(world, program), LocalRank(index), None)
    if service is not None:
        found["ROLE_NAME"] = service.name
        if not service.world:
            found = {name: text for name, text in found.items() if name not in WORLD_VARIABLES}
    ports = program.nodes[program.position_on(world.node_rank)[0]].ports
    return {**found, "PORT": str(ports[index])} if ports else found


def _seen(
    machine: Machine, gpus: Sequence[Gpu], service: Service | None, env: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables by which a worker sees these GPUs alone.

    Raises:
        UsageError: its service's own variables choose others.

    """
    found = variables.visible_gpus_variables(machine, gpus, env)
    other = next((name for name in found if service and name in service.env), None)
    if service is None or other is None:
        return found
    raise UsageError(
        f"{service.where}.env.{other}: {other} is a variable that clusterrun sets for each worker"
        " of a job with services",
        "leave it out; gpus_per_worker or devices choose the GPUs of a service",
    )


def _own_env(
    job: Job, service: Service | None, environment: Mapping[str, str], later: Collection[str]
) -> dict[str, str]:
    """Return the variables of the job and of a service, with ``$NAME`` replaced: the latter are stronger."""
    found = {name: Setting(text, job.origin(f"env.{name}")) for name, text in job.env.items()}
    texts = {name: it for name, it in found.items() if "$" in it.value and it.origin not in TYPED}
    if service is not None:
        texts |= {
            name: Setting(text, f"{service.where}.env.{name}") for name, text in service.env.items()
        }
    return {
        name: replaced(text.value, environment, later, text.origin) for name, text in texts.items()
    }


def _program(
    job: Job, service: Service | None, environment: Mapping[str, str], later: Collection[str]
) -> WorkerProgram:
    """Return what the worker of a service, or of the main program, runs, with ``$NAME`` replaced.

    A shell does that itself: on the command line, or for a command that is a text.
    """
    program = job.script if service is None else service.program
    argument = job.program.pass_local_rank if service is None else ""
    if argument:
        local_rank = f"--{argument}={environment['LOCAL_RANK']}"
        program = replace(program, args=(local_rank, *program.args))
    origin = job.origin("script") if service is None else service.where
    if origin == COMMAND_LINE or (program.name, *program.args[:1]) == SHELL:
        return program
    words = (replaced(word, environment, later, origin) for word in (program.name, *program.args))
    name, *args = words
    return WorkerProgram(program.kind, name, tuple(args))


def replaced(text: str, environment: Mapping[str, str], later: Collection[str], origin: str) -> str:
    """Return a text with each ``$NAME`` and ``${NAME}`` replaced; ``$$`` is a dollar.

    Variables in ``later``, and, if there are any, those that begin with CLUSTERRUN_, stay as they are.

    Raises:
        UsageError: a variable is not set.

    """

    def value(found: "re.Match[str]") -> str:
        name = found[1] or found[2]
        if found[3]:
            return "$"
        if name in environment:
            return environment[name]
        if name in later or (later and name.startswith("CLUSTERRUN_")):
            return found[0]
        raise UsageError(f"{origin}: ${name} is not set", f"set it, or write $${name} for the text")

    return _REFERENCE.sub(value, text)
