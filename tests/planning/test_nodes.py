"""What a node starts: GPUs, CPUs, memory and variables of its workers, and warnings; or an error.

A file in ``nodes/`` has sessions, separated by empty lines:

    # Why the line means what follows.
    $ nodes=0-3/4-7 gpus=0,1 NAME=VALUE clusterrun --numa-binding node + server gpus_per_worker=1
    cpus: 0-3 4-7
    warning: ...

Before ``clusterrun`` are a machine and variables: CPUs of each NUMA node, the node of each GPU (? if it
is unknown), and other arguments of ``machine``. ``visible=2,MIG-0`` names GPUs and slices,
``slices=1`` splits GPU 1. ``task=2/4`` is a scheduler's third task of four on the second of two nodes.
``workers=3`` starts as many without a check. After each ``+`` is a service with its keys.

A session has the values that matter, one for each worker, and all warnings; or an error and its hint.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.cpuset import CpuSet
from clusterrun.errors import LauncherError
from clusterrun.job.declarations import flag
from clusterrun.job.job import Job, ProgramKind, TaskLayout, WorkerProgram
from clusterrun.job.options import OPTIONS
from clusterrun.job.services import OPTIONS as KEYS
from clusterrun.job.services import Service
from clusterrun.machine.machine import Gpu, Machine
from clusterrun.planning.job_machine import machine_for
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.plan import NodePlan, WorkerPlan, WorkerSlot, assumed_world
from clusterrun.planning.services import assumed_programs
from clusterrun.planning.variables import user_environment
from clusterrun.planning.worker_slots import worker_slots, worker_slots_for
from msgspec.structs import replace

from tests.plans import job, machine, service
from tests.sessions import Session, sessions_of

TABLES = sorted((Path(__file__).parent / "nodes").glob("*.txt"))


@pytest.mark.parametrize("session", sessions_of(*TABLES, usual=""), ids=str)
def test_session(session: Session) -> None:
    others = ("warning: ", "error: ", "  ")
    names = [text.partition(":")[0] for text in session.expected if not text.startswith(others)]

    assert tuple(session_output(session.line, names)) == session.expected


def session_output(line: str, names: Sequence[str]) -> Iterator[str]:
    """Yield what a session shows: the values with these names, and all warnings, or the error."""
    words = shlex.split(line)
    at = words.index("clusterrun")
    given = dict(word.split("=", 1) for word in words[:at])
    environ = {name: value for name, value in given.items() if name.isupper()}
    facts = {name: value for name, value in given.items() if not name.isupper()}
    workers = facts.pop("workers", None)
    described = job_of(words[at + 1 :], facts)
    try:
        here = machine_for(described, machine_of(facts))
        slots = (
            worker_slots_for(described, here, int(workers))
            if workers
            else worker_slots(described, here)
        )
        plan = plan_of(described, here, slots, environ)
    except LauncherError as error:
        yield f"error: {error.message}"
        yield from (f"  {line}" for line in error.hint.splitlines())
        return
    for name in names:
        yield f"{name}: {' '.join(shown(plan, slots, name))}"
    yield from (f"warning: {warning}" for warning in plan.all_warnings())


def job_of(words: Sequence[str], facts: dict[str, str]) -> Job:
    """Return the job of these words; a task and the like are facts, which are removed."""
    values: dict[str, Any] = {}
    own, *services = (list(part) for plus, part in groupby(["", *words], "+".__eq__) if not plus)
    rest = iter(own[1:])
    for word in rest:
        name = word.removeprefix("--").replace("-", "_")
        if word == "-":
            values["script"] = WorkerProgram(ProgramKind.SCRIPT, "-", ())
        elif name == "env":
            values.setdefault("env", {}).update([next(rest).split("=", 1)])
        elif not OPTIONS[name].metavar:
            values[name] = True
        else:
            text = next(rest)
            values[name] = int(text) if name == "nnodes" else OPTIONS[name].value.read(text)
    if task := facts.pop("task", ""):
        values |= {
            "nnodes": 2,
            "nproc_per_node": 1,
            "master_addr": "n0",
            "tasks": task_of(task, facts),
        }
    if main_nodes := facts.pop("main_nodes", ""):
        values["main_nodes"] = KEYS["node_ranks"].value.read(main_nodes)
    if assigned_node := facts.pop("assigned_node", ""):
        values["numa_node"] = int(assigned_node)
    values |= {name: True for name in ("as_torchrun", "coloured") if facts.pop(name, "")}
    values["unclear"] = facts.pop("unclear", "")
    if services:
        values["services"] = tuple(map(service_of, services))
    described = job(**values)
    origins = {name: flag(name) for name in described.origins if name in OPTIONS}
    return replace(described, origins={**described.origins, **origins})


def task_of(text: str, facts: dict[str, str]) -> TaskLayout:
    rank, size = map(int, text.split("/"))
    return TaskLayout(
        rank=GlobalRank(size + rank),
        size=2 * size,
        local_rank=LocalRank(rank),
        local_size=size,
        node_rank=NodeRank(1),
        nodes=2,
        own_cpus={"yes": True, "no": False, "unknown": None}[facts.pop("own_cpus", "no")],
        gpus=int(facts.pop("task_gpus", 0)) or None,
        one_per_node="srun --ntasks-per-node=1",
    )


def service_of(words: Sequence[str]) -> Service:
    """Return the service with a name and these keys; ``command`` is its words, ``env.NAME`` a variable."""
    name, *keys = words
    given = dict(key.split("=", 1) for key in keys)
    program, *args = given.pop("command", name).split()
    env = {key[4:]: given.pop(key) for key in list(given) if key.startswith("env.")}
    values = {key: KEYS[key].value.read(text) for key, text in given.items()}
    return service(name, program, *args, where=f"rl.yaml services.{name}", env=env, **values)


def machine_of(facts: Mapping[str, str]) -> Machine:
    """Return the machine with these facts; of any other it has what is usual."""
    known = dict(facts)
    nodes = known.pop("nodes", "").split("/") if "nodes" in facts else []
    vendors, models = known.pop("vendor", "nvidia").split(","), known.pop("models", "").split(",")
    split, shown = numbers(known.pop("slices", "")), known.pop("visible", None)
    later: dict[str, Any] = {
        name: CpuSet.parse(known.pop(name)) for name in ("isolated", "cpuset") if name in known
    }
    texts = ("visible_origin", "visible_warning", "accelerators")
    later |= {name: known.pop(name) for name in texts if name in known}
    made = machine(dict(enumerate(nodes)), numbers(known.pop("gpus", "")), **arguments(known))
    gpus = tuple(
        replace(gpu, vendor=vendor, model=model)
        for gpu, vendor, model in zip(made.gpus, cycle(vendors), cycle(models), strict=False)
    )
    slices = tuple(
        replace(gpus[number or 0], uuid=f"MIG-{at}", parent=f"GPU-{number}")
        for at, number in enumerate(split)
    )
    by_name = {str(gpu.index): gpu for gpu in gpus} | {gpu.uuid: gpu for gpu in slices}
    visible = gpus if shown is None else tuple(by_name[name] for name in shown.split(",") if name)
    return replace(made, gpus=(*gpus, *slices), visible=visible, **later)


def arguments(facts: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments of ``machine``."""
    found: dict[str, Any] = {}
    for name, text in facts.items():
        match name:
            case "allowed":
                found[name] = text
            case "cores" if text == "unknown":
                found["cores_known"] = False
            case "packages" | "cores" | "caches":
                found[name] = text.split("/") if text else []
            case "distances":
                rows = (map(int, row.split(",")) for row in text.split("/"))
                found[name] = {at: dict(enumerate(row)) for at, row in enumerate(rows)}
            case "bus":
                found["pci_gpus"] = numbers(text)
            case "without_memory":
                found[name] = numbers(text)
            case "quota":
                found[name] = float(text)
            case _:
                raise ValueError(name)
    return found


def numbers(text: str) -> list[int | None]:
    return [None if each == "?" else int(each) for each in text.split(",") if each]


def plan_of(
    described: Job, here: Machine, slots: Sequence[WorkerSlot], environ: Mapping[str, str]
) -> NodePlan:
    ours = sum(slot.is_ours and slot.program == "main" for slot in slots)
    programs = assumed_programs(described, here) if described.services else ()
    return plan_node(
        described,
        here,
        assumed_world(described, ours, programs),
        unset=(),
        error_files=None,
        before=user_environment(described, environ, ()),
        slots=slots,
    )


def shown(plan: NodePlan, slots: Iterable[WorkerSlot], name: str) -> Iterator[str]:
    """Yield a value of each worker, all slots of the node, or what is one for all."""
    match name:
        case "workers":
            yield str(len(plan.workers))
        case "visible_origin":
            yield plan.visible_origin
        case "slots":
            yield from map(shown_slot, slots)
        case "command":
            yield " | ".join(shlex.join(worker.command) for worker in plan.workers)
        case _:
            yield from (shown_worker(worker, plan, name) for worker in plan.workers)


def shown_slot(slot: WorkerSlot) -> str:
    where = "" if slot.is_ours or slot.program is None else " (elsewhere)"
    gpus = "?" if slot.gpus is None else numbers_of(slot.gpus)
    return f"{slot.program or 'others'}:{gpus}{where}"


def shown_worker(worker: WorkerPlan, plan: NodePlan, name: str) -> str:
    match name:
        case "gpus":
            return numbers_of(worker.gpus)
        case "cpus":
            return "none" if worker.cpus is None else str(worker.cpus)
        case "memory":
            return str(worker.memory or "-").replace(" ", ":")
        case "numa_nodes":
            return ",".join(map(str, worker.numa_nodes)) or "-"
        case "numbers":
            return str(worker.rank)
        case "local_rank_reason" | "needs_ras_port":
            return str(getattr(worker, name)) or "-"
    text = {**plan.env, **worker.env}.get(name, "-")
    return text or repr(text)


def numbers_of(gpus: Iterable[Gpu]) -> str:
    """Return numbers, and UUIDs of slices. Of a GPU of others only the bus is known, which ``machine`` counts."""
    return ",".join(map(name_of, gpus)) or "-"


def name_of(gpu: Gpu) -> str:
    return gpu.uuid if gpu.parent else str(int(gpu.bdf[5:7], 16) // 16 - 1)
