"""The programs of a job with services on a node: GPUs, ranks, addresses, variables, binding."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusterrun.bounds import NodeRank
from clusterrun.errors import UsageError
from clusterrun.job.job import MAIN, Job, ProgramKind, WorkerProgram
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.job.program import COMMAND_LINE
from clusterrun.job.services import Service
from clusterrun.job.values import RankSet, WorkerCount
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import Tree
from clusterrun.planning.node_plan import plan_node
from clusterrun.planning.plan import (
    NodePlan,
    ProgramOnNode,
    ProgramWorld,
    WorkerPlan,
    World,
    assumed_world,
)
from clusterrun.planning.preparation import preparation_of
from clusterrun.planning.services import MAX_LIST_LENGTH, addresses_of, with_inherited_values
from clusterrun.planning.variables import user_environment
from clusterrun.planning.worker_slots import worker_slots
from hypothesis import assume, given
from msgspec.structs import replace

from tests.machine_trees import dgx_a100, write_tree
from tests.planning.generated import Generated, machines
from tests.plans import job, machine, world
from tests.plans import planned as plan_alone
from tests.real_machines import CAPTURES, tree_at

EIGHT = machine({0: "0-7", 1: "8-15"}, [0, 0, 0, 0, 1, 1, 1, 1])
FOUR = machine({0: "0-3", 1: "4-7"}, [0, 0, 1, 1])
NO_GPUS = machine({0: "0-3", 1: "4-7"})

WANT_MORE = "the services of this node need more GPUs than the 4 that are visible"
FEWER = "give fewer, or place them on other nodes: nnodes, node_ranks"

SERVE = WorkerProgram(ProgramKind.EXECUTABLE, "serve", ())


def service(name: str = "server", **values: Any) -> Service:
    """Return a service of one worker on each node; ``values`` by the names of its fields."""
    return Service(
        **{"name": name, "where": f"rl.yaml:4 services.{name}", "program": SERVE, **values}
    )


def gpus_by_program(spec: Job, here: Machine) -> dict[str, list[list[int]]]:
    found = defaultdict[str, list[list[int]]](list)
    for slot in worker_slots(spec, here):
        if slot.is_ours and slot.program and slot.program != MAIN:
            found[slot.program].append([gpu.index for gpu in slot.gpus or ()])
    return found


def main_workers(spec: Job, here: Machine) -> int:
    return sum(1 for slot in worker_slots(spec, here) if slot.is_ours and slot.program == MAIN)


def planned(
    spec: Job,
    here: Machine,
    where: World | None = None,
    environ: Mapping[str, str] | None = None,
    error_files: str | None = None,
) -> NodePlan:
    """Return the plan of this node in a world, else in the one that a dry run assumes."""
    return plan_node(
        spec,
        here,
        where or assumed_world(spec, main_workers(spec, here)),
        unset=(),
        error_files=error_files,
        before=user_environment(spec, environ or {}, ()),
        slots=worker_slots(spec, here),
    )


def variables(plan: NodePlan, *names: str) -> list[list[str]]:
    """Return "NAME=VALUE" of each worker, without those that it has not."""
    return [[f"{name}={it.env[name]}" for name in names if name in it.env] for it in plan.workers]


def program(
    name: str, first: int, by_node: Mapping[int, int], addresses: Sequence[str] = ()
) -> ProgramWorld:
    """Return a program with so many workers on these nodes; a port is 1000 and the worker's number."""
    nodes, number = [], first
    for rank, count in by_node.items():
        address = addresses[rank] if addresses else f"10.0.0.{rank}"
        ports = tuple(1000 + number + index for index in range(count))
        nodes.append(ProgramOnNode(NodeRank(rank), address, count, ports, 2000 + 10 * rank + first))
        number += count
    return ProgramWorld(name, first, tuple(nodes))


def joined(programs: Sequence[ProgramWorld], node_rank: int = 0, nodes: int = 1) -> World:
    """Return the world of a node once all have joined."""
    main = programs[0]
    here = [node.workers for node in main.nodes if node.node_rank == node_rank]
    return replace(
        world(sum(here)),
        node_rank=NodeRank(node_rank),
        nodes=nodes,
        size=main.size,
        role_size=main.size,
        master_addr="10.0.0.0",
        programs=tuple(programs),
    )


ONE_NODE = joined([program("main", 0, {0: 2}), program("server", 2, {0: 2})])
TWO_OF_FOUR = job(services=(service(nproc_per_node=2, gpus_per_worker=1),))


# GPUs of services.


@pytest.mark.parametrize(
    ("services", "gpus", "main"),
    [
        ([{}], [[[]]], 8),
        ([{"nproc_per_node": 3}], [[[], [], []]], 8),
        ([{"gpus_per_worker": 1}], [[[7]]], 7),
        ([{"nproc_per_node": 2, "gpus_per_worker": 1}], [[[6], [7]]], 6),
        ([{"nproc_per_node": 2, "gpus_per_worker": 2}], [[[4, 5], [6, 7]]], 4),
        ([{"gpus_per_worker": 1}, {"gpus_per_worker": 2}], [[[7]], [[5, 6]]], 5),
        ([{"gpus_per_worker": 2}, {}, {"gpus_per_worker": 1}], [[[6, 7]], [[]], [[5]]], 5),
        ([{"nproc_per_node": 4, "gpus_per_worker": 2}], [[[0, 1], [2, 3], [4, 5], [6, 7]]], 0),
        ([{"devices": ("0",)}], [[[0]]], 7),
        ([{"devices": ("5", "1"), "nproc_per_node": 2}], [[[5], [1]]], 6),
        ([{"devices": ("0", "1", "2", "3"), "nproc_per_node": 2}], [[[0, 1], [2, 3]]], 4),
        ([{"devices": ("GPU-3", "0")}], [[[3, 0]]], 6),
        # Others may use the chosen ones, too, but not the main program.
        ([{"devices": ("7",)}, {"gpus_per_worker": 1}], [[[7]], [[7]]], 7),
        ([{"gpus_per_worker": 1}, {"devices": ("0", "7")}], [[[7]], [[0, 7]]], 6),
    ],
)
def test_services_have_the_last_gpus_of_a_node(
    services: list[dict[str, Any]], gpus: list[list[list[int]]], main: int
) -> None:
    """In the order of the file; the main program has a worker for each GPU that is left."""
    names = ["a", "b", "c"][: len(services)]
    several = [service(name, **values) for name, values in zip(names, services, strict=True)]
    spec = job(services=tuple(several), nnodes=2, node_rank=0)

    assert gpus_by_program(spec, EIGHT) == dict(zip(names, gpus, strict=True))
    assert main_workers(spec, EIGHT) == main


def test_two_services_may_share_chosen_gpus() -> None:
    """Each selects them with ``devices``."""
    services = (service("a", devices=("3",)), service("b", devices=("3", "2")))

    assert gpus_by_program(job(services=services), FOUR) == {"a": [[3]], "b": [[3, 2]]}


def test_the_last_gpus_are_those_of_the_visible_list() -> None:
    """CUDA_VISIBLE_DEVICES=6,4,2 leaves three, in that order."""
    here = replace(EIGHT, visible=tuple(EIGHT.visible[index] for index in (6, 4, 2)))
    spec = job(services=(service(nproc_per_node=2, gpus_per_worker=1),))

    assert gpus_by_program(spec, here) == {"server": [[4], [2]]}


@pytest.mark.parametrize("address", ["", "0000:10:00.0"], ids=["no bus", "partitions of one"])
def test_gpus_without_addresses_are_distinguished(address: str) -> None:
    """The main program keeps those that the service does not have."""
    gpus = tuple(replace(gpu, bdf=address) for gpu in FOUR.gpus)
    here = replace(FOUR, gpus=gpus, visible=gpus, pci_gpus=())
    spec = job(services=(service(gpus_per_worker=1),))

    assert gpus_by_program(spec, here) == {"server": [[3]]}
    assert main_workers(spec, here) == 3
    assert [it.gpus for it in planned(spec, here).workers] == [(gpu,) for gpu in gpus]


def test_a_service_takes_gpus_on_its_own_nodes_only() -> None:
    """The others are the main program's."""
    services = (
        service("a", gpus_per_worker=1, nnodes=1),
        service("b", gpus_per_worker=2),
    )

    def on(node_rank: int) -> tuple[dict[str, list[list[int]]], int]:
        spec = job(services=services, nnodes=2, node_rank=node_rank)
        return gpus_by_program(spec, FOUR), main_workers(spec, FOUR)

    assert on(0) == ({"b": [[2, 3]]}, 2)
    assert on(1) == ({"a": [[3]], "b": [[1, 2]]}, 1)


def test_main_workers_share_remaining_gpus() -> None:
    """Seven GPUs are enough for three workers of two."""
    spec = job(services=(service(gpus_per_worker=1),), gpus_per_worker=2)

    assert main_workers(spec, EIGHT) == 3


@pytest.mark.parametrize(
    ("services", "message", "hint"),
    [
        (
            [{"nproc_per_node": 3, "gpus_per_worker": 2}],
            f"rl.yaml:4 services.a: {WANT_MORE}: a 6 (rl.yaml:4 services.a)",
            FEWER,
        ),
        (
            # One without GPUs, and one that says which, do not count.
            [{"gpus_per_worker": 3}, {}, {"devices": ("0",)}, {"gpus_per_worker": 2}],
            f"rl.yaml:6 services.d: {WANT_MORE}: a 3 (rl.yaml:4 services.a), d 2 (rl.yaml:6 services.d)",
            FEWER,
        ),
        (
            [{"devices": ("0", "4")}],
            "rl.yaml:4 services.a: GPU 4 is not visible on this node: 4 GPUs are (NVML)",
            "name GPUs as CUDA numbers them, or by UUID",
        ),
        (
            [{"devices": ("0", "1", "2"), "nproc_per_node": 2}],
            "rl.yaml:4 services.a: 3 GPUs can't be divided among 2 workers",
            "give each worker the same number of GPUs",
        ),
        (
            [{"devices": ("0",), "nproc_per_node": 2}],
            "rl.yaml:4 services.a: 1 GPU can't be divided among 2 workers",
            "give each worker the same number of GPUs",
        ),
    ],
)
def test_gpus_that_a_node_does_not_have(
    services: list[dict[str, Any]], message: str, hint: str
) -> None:
    """The error has the number of GPUs of each service, and where it was set."""
    several = [service(name, **it) for name, it in zip("abcd", services, strict=False)]
    several[3:] = [replace(it, where="rl.yaml:6 services.d") for it in several[3:]]

    with pytest.raises(UsageError) as caught:
        worker_slots(job(services=tuple(several)), FOUR)

    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_machine_without_gpus_has_none_for_services() -> None:
    """The message counts none."""
    with pytest.raises(UsageError, match="more GPUs than the 0 that are visible: server 1 "):
        worker_slots(job(services=(service(gpus_per_worker=1),)), NO_GPUS)


# Workers of the main program.

ALL_TAKEN = service(nproc_per_node=4, gpus_per_worker=1, nnodes=1)
NOTHING = service(nnodes=1)


@pytest.mark.parametrize(
    ("here", "taken", "values", "workers"),
    [
        # Node 1 has all GPUs taken.
        (FOUR, ALL_TAKEN, {"node_rank": 0}, 4),
        (FOUR, ALL_TAKEN, {"node_rank": 1}, 0),
        (FOUR, ALL_TAKEN, {"node_rank": 1, "nproc_per_node": 2}, 0),
        (FOUR, ALL_TAKEN, {"node_rank": 1, "gpus_per_worker": 0, "nproc_per_node": 2}, 2),
        (FOUR, ALL_TAKEN, {"node_rank": 1, "main_nodes": (0, 1)}, 1),
        (FOUR, NOTHING, {"node_rank": 1, "nproc_per_node": 2}, 2),
        # node_ranks says where it is.
        (FOUR, NOTHING, {"node_rank": 0, "main_nodes": (0, 0)}, 4),
        (FOUR, NOTHING, {"node_rank": 1, "main_nodes": (0, 0)}, 0),
        (NO_GPUS, NOTHING, {"node_rank": 1, "main_nodes": (0, 0)}, 0),
        # Without GPUs, none can be taken.
        (NO_GPUS, NOTHING, {"node_rank": 1}, 1),
        (NO_GPUS, NOTHING, {"node_rank": 1, "nproc_per_node": 3}, 3),
        (NO_GPUS, NOTHING, {"node_rank": 1, "nproc_per_node": WorkerCount.AUTO}, 8),
    ],
)
def test_main_worker_count(
    here: Machine, taken: Service, values: dict[str, Any], workers: int
) -> None:
    """One for each GPU that is left; none where none is left, or where ``node_ranks`` has no node."""
    spec = two_nodes(taken, **values)

    assert main_workers(spec, here) == workers


def two_nodes(*services: Service, main_nodes: tuple[int, int] | None = None, **values: Any) -> Job:
    """Return a job of two nodes; the main program is on those from the first to the last one given."""
    ranks = None if main_nodes is None else RankSet((main_nodes,))
    return job(**{"services": services, "nnodes": 2, "node_rank": 0, "main_nodes": ranks, **values})


def test_a_node_needs_a_program() -> None:
    """Else it would do nothing for the whole job."""
    spec = two_nodes(NOTHING, node_rank=0, main_nodes=(1, 1))

    with pytest.raises(UsageError) as caught:
        main_workers(spec, FOUR)

    assert caught.value.message == "node 0 has no program: node_ranks is 1, and it has no service"
    assert caught.value.hint == "reduce nnodes (2 (the test)), or give this node a service"


def test_a_job_of_one_node_needs_a_main_worker() -> None:
    """Services that take all GPUs of the only node leave nothing to wait for."""
    spec = job(services=(service(nproc_per_node=4, gpus_per_worker=1),))

    with pytest.raises(UsageError) as caught:
        main_workers(spec, FOUR)

    assert caught.value.message == (
        "rl.yaml:4 services.server: the services have all 4 GPUs, and the main program has no other node"
    )
    assert caught.value.hint == (
        "give them fewer, or add gpus_per_worker: 0 at the top level if the main program needs none"
    )


def test_a_node_must_know_its_rank() -> None:
    """Its services depend on it."""
    spec = job(services=(service(),), nnodes=2)

    with pytest.raises(UsageError) as caught:
        worker_slots(spec, FOUR)

    assert caught.value.message == (
        "rl.yaml:4 services.server: this node's services depend on its rank, which is not set"
    )
    assert caught.value.hint == "give --node-rank"


def test_services_reject_mig_slices() -> None:
    """Slices (MIG) have one address, and a process sees one of them only."""
    slices = tuple(
        replace(FOUR.gpus[0], index=index, uuid=f"MIG-{index}", parent="GPU-0")
        for index in range(3)
    )
    here = replace(FOUR, gpus=slices, visible=slices)
    spec = job(services=(service(gpus_per_worker=1),), nnodes=2, node_rank=0)

    with pytest.raises(
        UsageError, match=r"^rl\.yaml:4 services\.server: a GPU of this node is split"
    ):
        worker_slots(spec, here)


# Which GPUs a worker sees.

CUDA, HIP = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"
AMD_GPUS = tuple(replace(gpu, vendor="amd") for gpu in FOUR.gpus)
AMD = replace(FOUR, gpus=AMD_GPUS, visible=AMD_GPUS)
TWO_MODELS = replace(FOUR, gpus=(replace(FOUR.gpus[0], model="H100"), *FOUR.gpus[1:]))
REVERSED = replace(FOUR, visible=FOUR.visible[::-1])


@pytest.mark.parametrize(
    ("here", "own", "values", "seen"),
    [
        (FOUR, {"gpus_per_worker": 1}, {}, [[f"{CUDA}=0,1,2"]] * 3 + [[f"{CUDA}=3"]]),
        (
            FOUR,
            {"nproc_per_node": 2, "gpus_per_worker": 1},
            {},
            [[f"{CUDA}=0,1"]] * 2 + [[f"{CUDA}=2"], [f"{CUDA}=3"]],
        ),
        # In a world of its own, LOCAL_RANK is the number of the worker's GPU.
        (
            FOUR,
            {"nproc_per_node": 2, "gpus_per_worker": 1, "world": True},
            {},
            [[f"{CUDA}=0,1"]] * 2 + [[f"{CUDA}=2,3"]] * 2,
        ),
        (FOUR, {"gpus_per_worker": 3}, {}, [[f"{CUDA}=0"], [f"{CUDA}=1,2,3"]]),
        (FOUR, {}, {}, [[f"{CUDA}=0,1,2,3"]] * 4 + [[f"{CUDA}="]]),
        (FOUR, {"world": True}, {}, [[f"{CUDA}=0,1,2,3"]] * 4 + [[f"{CUDA}="]]),
        (FOUR, {"devices": ("2", "0")}, {}, [[f"{CUDA}=1,3"]] * 2 + [[f"{CUDA}=2,0"]]),
        # The main program has all that are left, however few workers it has.
        (
            FOUR,
            {"gpus_per_worker": 1},
            {"nproc_per_node": 1},
            [[f"{CUDA}=0,1,2"], [f"{CUDA}=3"]],
        ),
        (
            FOUR,
            {"gpus_per_worker": 3},
            {"nproc_per_node": 2, "gpus_per_worker": 0},
            [[f"{CUDA}=0"]] * 2 + [[f"{CUDA}=1,2,3"]],
        ),
        (
            FOUR,
            {"gpus_per_worker": 4},
            {"gpus_per_worker": 0},
            [[f"{CUDA}="], [f"{CUDA}=0,1,2,3"]],
        ),
        # --virtual-local-rank: each sees its own.
        (
            FOUR,
            {"gpus_per_worker": 2},
            {"virtual_local_rank": True},
            [[f"{CUDA}=0", "LOCAL_RANK=0"], [f"{CUDA}=1", "LOCAL_RANK=0"], [f"{CUDA}=2,3"]],
        ),
        (REVERSED, {"gpus_per_worker": 3}, {}, [[f"{CUDA}=3"], [f"{CUDA}=2,1,0"]]),
        (AMD, {"gpus_per_worker": 3}, {}, [[f"{HIP}=0"], [f"{HIP}=1,2,3"]]),
        (AMD, {}, {"nproc_per_node": 1}, [[f"{HIP}=0,1,2,3"], [f"{HIP}="]]),
        # The order among several models depends on CUDA_DEVICE_ORDER.
        (
            TWO_MODELS,
            {"gpus_per_worker": 2},
            {"nproc_per_node": 1},
            [[f"{CUDA}=GPU-0,GPU-1"], [f"{CUDA}=GPU-2,GPU-3"]],
        ),
        (NO_GPUS, {}, {}, [[], []]),
    ],
)
def test_a_worker_sees_the_gpus_of_its_program(
    here: Machine, own: dict[str, Any], values: dict[str, Any], seen: list[list[str]]
) -> None:
    """A service without a world: each of its workers sees its own alone; without GPUs: none."""
    plan = planned(job(services=(service(**own),), **values), here)

    names = (CUDA, HIP, *(["LOCAL_RANK"] if "virtual_local_rank" in values else []))
    assert variables(plan, *names) == seen


def test_both_hip_variables_are_replaced() -> None:
    """HIP takes CUDA's for an alias of its own: they must not differ."""
    plan = planned(
        job(services=(service(gpus_per_worker=3),)),
        AMD,
        environ={"CUDA_VISIBLE_DEVICES": "0,1,2,3"},
    )

    assert variables(plan, CUDA, HIP) == [
        [f"{CUDA}=0", f"{HIP}=0"],
        [f"{CUDA}=1,2,3", f"{HIP}=1,2,3"],
    ]


def test_variables_of_a_service_that_choose_gpus() -> None:
    """They would not agree with the GPUs that it has; where none is found, they are the user's."""
    spec = job(services=(service(env={CUDA: "0"}),))

    with pytest.raises(UsageError) as caught:
        planned(spec, FOUR)

    assert caught.value.message == (
        f"rl.yaml:4 services.server.env.{CUDA}: {CUDA} is a variable that clusterrun sets for each"
        " worker of a job with services"
    )
    assert caught.value.hint == (
        "remove it; gpus_per_worker or devices choose the GPUs of a service"
    )
    assert variables(planned(spec, NO_GPUS), CUDA) == [[], [f"{CUDA}=0"]]


def test_programs_with_gpus_need_ports_for_their_nccl() -> None:
    """Each by its own variables."""
    own = service(name="judge", gpus_per_worker=1, env={"NCCL_RAS_ENABLE": "0"})
    services = (service(gpus_per_worker=1), own, service(name="store", gpus_per_worker=0))
    plan = planned(job(services=services, nproc_per_node=2), FOUR)

    assert [each.needs_ras_port for each in plan.workers] == [True, True, True, False, False]


# Ranks and numbers.

RANKS = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "PORT"),
)


def ranks(worker: WorkerPlan) -> str:
    """Return its variables of ``RANKS`` in their order, "-" for each that it has not."""
    return " ".join(worker.env.get(name, "-") for name in RANKS)


def test_ranks_on_one_node() -> None:
    """The main program's ranks count only itself; a service has no variables that libraries would use."""
    spec = job(services=(service(nproc_per_node=2),), nproc_per_node=2)

    plan = planned(spec, NO_GPUS, ONE_NODE)

    assert [ranks(worker) for worker in plan.workers] == [
        "0 0 2 2 0 2 0 0 1 10.0.0.0 2000 1000",
        "1 1 2 2 1 2 0 0 1 10.0.0.0 2000 1001",
        "- - - - 0 2 0 0 1 10.0.0.0 2002 1002",
        "- - - - 1 2 0 0 1 10.0.0.0 2002 1003",
    ]
    assert variables(plan, "ROLE_NAME") == [[], [], ["ROLE_NAME=server"], ["ROLE_NAME=server"]]
    assert plan.env["ROLE_NAME"] == "default"


def test_ranks_of_a_service_with_a_world() -> None:
    """They count its own workers from 0."""
    spec = job(services=(service(nproc_per_node=2, world=True),), nproc_per_node=2)

    plan = planned(spec, NO_GPUS, ONE_NODE)

    assert [ranks(worker) for worker in plan.workers[2:]] == [
        "0 0 2 2 0 2 0 0 1 10.0.0.0 2002 1002",
        "1 1 2 2 1 2 0 0 1 10.0.0.0 2002 1003",
    ]


THREE_NODES = (
    program("main", 0, {0: 2, 2: 1}),
    program("server", 3, {1: 2, 2: 2}),
    program("judge", 7, {0: 1}),
)


@pytest.mark.parametrize(
    ("node_rank", "expected"),
    [
        (
            0,
            [
                "0 0 3 2 0 3 0 0 2 10.0.0.0 2000 1000",
                "1 1 3 2 1 3 0 0 2 10.0.0.0 2000 1001",
                "- - - - 0 1 0 0 1 10.0.0.0 2007 1007",
            ],
        ),
        (
            1,
            [
                "0 0 4 2 0 4 0 0 2 10.0.0.1 2013 1003",
                "1 1 4 2 1 4 0 0 2 10.0.0.1 2013 1004",
            ],
        ),
        (
            2,
            [
                "2 0 3 1 2 3 1 1 2 10.0.0.0 2000 1002",
                "2 0 4 2 2 4 1 1 2 10.0.0.1 2013 1005",
                "3 1 4 2 3 4 1 1 2 10.0.0.1 2013 1006",
            ],
        ),
    ],
)
def test_ranks_on_several_nodes(node_rank: int, expected: list[str]) -> None:
    """Each program counts its own nodes and workers, and meets at its own first node."""
    services = (
        service(nnodes=2, nproc_per_node=2, world=True),
        service("judge", node_ranks=RankSet(((0, 0),))),
    )
    spec = job(
        services=services,
        nnodes=3,
        node_rank=node_rank,
        nproc_per_node={0: 2, 1: 1, 2: 1}[node_rank],
        main_nodes=RankSet(((0, 0), (2, 2))),
    )

    plan = planned(spec, NO_GPUS, joined(THREE_NODES, node_rank, 3))

    assert [ranks(worker) for worker in plan.workers] == expected


def test_numbers_and_names_of_workers() -> None:
    """The main program's first, then each service's in the order of the file, node by node."""
    services = (
        service(nnodes=2, nproc_per_node=2),
        service("judge", node_ranks=RankSet(((0, 0),))),
    )
    spec = job(services=services, nnodes=3, node_rank=2, nproc_per_node=1)

    plan = planned(spec, NO_GPUS, joined(THREE_NODES, 2, 3), error_files="/e")

    assert plan.numbers == (2, 5, 6)
    assert [worker.local_rank for worker in plan.workers] == [0, 1, 2]
    assert [worker.rank_in_program for worker in plan.workers] == [2, 2, 3]
    assert [plan.name(worker.local_rank) for worker in plan.workers] == [
        "rank 2",
        "server rank 2",
        "server rank 3",
    ]
    assert variables(plan, "TORCHELASTIC_ERROR_FILE", "CLUSTERRUN_SUSPEND_PAGE")[1] == [
        "TORCHELASTIC_ERROR_FILE=/e/attempt-0/rank-5/error.json",
        "CLUSTERRUN_SUSPEND_PAGE=/e/attempt-0/suspend:1",
    ]
    assert plan.world.named(range(8)) == "ranks 0-2, server ranks 0-3, judge rank 0"


def test_node_with_only_services() -> None:
    """It prepares no script, and its workers know where the main program is."""
    spec = job(services=(service(nnodes=1),), nnodes=2, node_rank=1, main_nodes=RankSet(((0, 0),)))
    programs = (program("main", 0, {0: 2}), program("server", 2, {1: 1}))

    plan = planned(spec, NO_GPUS, joined(programs, 1, 2))

    assert [(worker.rank, worker.local_rank) for worker in plan.workers] == [(2, 0)]
    assert plan.workers[0].env["CLUSTERRUN_MAIN_ADDR"] == "10.0.0.0:1000"
    assert preparation_of(spec, plan, {}) is None


# Addresses.


def test_every_worker_has_the_addresses_of_all_programs() -> None:
    """The first one, all of them, their hosts, and where the workers of a program may meet."""
    found = addresses_of((program("main", 0, {0: 1}), program("judge_2", 1, {0: 1, 1: 2})))

    assert found == {
        "CLUSTERRUN_MAIN_ADDR": "10.0.0.0:1000",
        "CLUSTERRUN_MAIN_URL": "http://10.0.0.0:1000",
        "CLUSTERRUN_MAIN_ADDRS": "10.0.0.0:1000",
        "CLUSTERRUN_MAIN_URLS": "http://10.0.0.0:1000",
        "CLUSTERRUN_MAIN_HOSTS": "10.0.0.0",
        "CLUSTERRUN_MAIN_MASTER": "10.0.0.0:2000",
        "CLUSTERRUN_JUDGE_2_ADDR": "10.0.0.0:1001",
        "CLUSTERRUN_JUDGE_2_URL": "http://10.0.0.0:1001",
        "CLUSTERRUN_JUDGE_2_ADDRS": "10.0.0.0:1001,10.0.0.1:1002,10.0.0.1:1003",
        "CLUSTERRUN_JUDGE_2_URLS": (
            "http://10.0.0.0:1001,http://10.0.0.1:1002,http://10.0.0.1:1003"
        ),
        "CLUSTERRUN_JUDGE_2_HOSTS": "10.0.0.0,10.0.0.1",
        "CLUSTERRUN_JUDGE_2_MASTER": "10.0.0.0:2001",
    }


def test_an_ipv6_address_is_in_brackets_before_a_port() -> None:
    """Alone, it is not."""
    found = addresses_of((program("server", 0, {0: 1, 1: 1}, ["fd00::1", "node1"]),))

    assert found == {
        "CLUSTERRUN_SERVER_ADDR": "[fd00::1]:1000",
        "CLUSTERRUN_SERVER_URL": "http://[fd00::1]:1000",
        "CLUSTERRUN_SERVER_ADDRS": "[fd00::1]:1000,node1:1001",
        "CLUSTERRUN_SERVER_URLS": "http://[fd00::1]:1000,http://node1:1001",
        "CLUSTERRUN_SERVER_HOSTS": "fd00::1,node1",
        "CLUSTERRUN_SERVER_MASTER": "[fd00::1]:2000",
    }


def test_master_addr_of_an_ipv6_node_has_no_brackets() -> None:
    """As torch expects it."""
    programs = (program("main", 0, {0: 1}, ["fd00::1"]), program("server", 1, {0: 1}, ["fd00::1"]))

    plan = planned(job(services=(service(),), nproc_per_node=1), NO_GPUS, joined(programs))

    assert variables(plan, "MASTER_ADDR") == [["MASTER_ADDR=fd00::1"]] * 2


@pytest.mark.parametrize(
    ("characters", "is_set"), [(MAX_LIST_LENGTH, True), (MAX_LIST_LENGTH + 1, False)]
)
def test_too_long_address_list_is_not_set(characters: int, *, is_set: bool) -> None:
    """A worker can still start, and has the first address; it is ``URLS`` that is too long first."""
    host = "n" * (characters - len("http://:1000"))

    found = addresses_of((program("server", 0, {0: 1}, [host]),))

    assert {"CLUSTERRUN_SERVER_URL", "CLUSTERRUN_SERVER_URLS"} <= found.keys() or not is_set
    assert ("CLUSTERRUN_SERVER_URLS" in found) is is_set
    assert "CLUSTERRUN_SERVER_ADDRS" in found


def test_address_list_of_many_workers_is_not_set() -> None:
    """Each has the first one's address all the same."""
    found = addresses_of((program("server", 0, dict.fromkeys(range(1000), 8)),))

    assert sorted(name.removeprefix("CLUSTERRUN_SERVER_") for name in found) == [
        *("ADDR", "HOSTS", "MASTER", "URL"),
    ]


def test_no_address_is_known_before_all_have_joined() -> None:
    """Nor is that of a program that is on no node."""
    without_ports = ProgramWorld("a", 0, (ProgramOnNode(NodeRank(0), "", 1),))

    assert addresses_of((without_ports, ProgramWorld("b", 1, ()))) == {}


# Names in commands and variables.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$PORT", "1002"),
        ("${PORT}", "1002"),
        ("--port=$PORT", "--port=1002"),
        ("$PORT:${PORT}0", "1002:10020"),
        ("$MASTER_ADDR/$MASTER_PORT", "10.0.0.0/2002"),
        ("$ROLE_NAME-$ROLE_RANK", "server-0"),
        ("$CLUSTERRUN_MAIN_ADDR", "10.0.0.0:1000"),
        ("$CLUSTERRUN_SERVER_URLS", "http://10.0.0.0:1002,http://10.0.0.0:1003"),
        ("$INHERITED", "7"),
        ("$OF_JOB", "8"),
        ("$OF_SERVICE", "9"),
        ("$BOTH", "of the service"),
        ("$OMP_NUM_THREADS", "2"),
        ("$$PORT", "$PORT"),
        ("$${PORT}", "${PORT}"),
        ("$$$PORT", "$1002"),
        ("$$", "$"),
        # Not names: a shell would take some of them for more.
        ("$", "$"),
        ("5$", "5$"),
        ("$-", "$-"),
        ("${PORT", "${PORT"),
        ("${PORT:-1}", "${PORT:-1}"),
        ("$(date)", "$(date)"),
    ],
)
def test_variables_in_a_command_are_expanded(text: str, expected: str) -> None:
    """They stand for the worker's own variables; ``$$`` is a dollar."""
    words = WorkerProgram(ProgramKind.EXECUTABLE, "serve", (text,))
    own = {"OF_SERVICE": "9", "BOTH": "of the service"}
    spec = job(
        services=(service(program=words, nproc_per_node=2, env=own),),
        nproc_per_node=2,
        env={"OF_JOB": "8", "BOTH": "of the job"},
    )

    plan = planned(spec, NO_GPUS, ONE_NODE, {"INHERITED": "7"})

    assert plan.workers[2].command == ("serve", expected)


def of_a_file(spec: Job) -> Job:
    """Return the job with variables from a job file, not from the command line."""
    origins = {name: f"rl.yaml:2 {name}" for name in spec.origins if name.startswith("env.")}
    return replace(spec, origins={**spec.origins, **origins})


def test_command_line_variables_are_not_expanded_again() -> None:
    spec = job(services=(service(),), env={"TEXT": "a$b"})

    plan = planned(with_inherited_values(spec, {}), NO_GPUS, ONE_NODE)

    assert plan.env["TEXT"] == "a$b"
    assert variables(plan, "TEXT") == [[]] * len(plan.workers)


def test_each_worker_has_its_own_values() -> None:
    """In its arguments as in its variables."""
    words = WorkerProgram(ProgramKind.SCRIPT, "$DIR/serve.py", ("$PORT",))
    own = service(program=words, nproc_per_node=2, env={"DIR": "/srv", "ME": "$ROLE_RANK:$PORT"})
    script = WorkerProgram(ProgramKind.SCRIPT, "train.py", ("$RANK", "$CLUSTERRUN_SERVER_URL"))

    spec = of_a_file(job(services=(own,), nproc_per_node=2, script=script, env={"AT": "$PORT"}))
    plan = planned(spec, NO_GPUS, ONE_NODE)

    url = "http://10.0.0.0:1002"
    assert [worker.command for worker in plan.workers[:2]] == [
        ("python", "-u", "train.py", "0", url),
        ("python", "-u", "train.py", "1", url),
    ]
    assert variables(plan, "AT", "ME") == [
        ["AT=1000"],
        ["AT=1001"],
        ["AT=1002", "ME=0:1002"],
        ["AT=1003", "ME=1:1003"],
    ]


def test_the_program_of_a_service_is_found_in_its_own_variables() -> None:
    """A variable of the service may be used in its command."""
    words = WorkerProgram(ProgramKind.EXECUTABLE, "$BIN/serve", ())

    plan = planned(job(services=(service(program=words, env={"BIN": "/opt"}),)), NO_GPUS)

    assert plan.workers[1].command == ("/opt/serve",)


def test_service_variable_may_extend_inherited_value() -> None:
    """PATH: /opt/bin:$PATH."""
    spec = job(services=(service(env={"PATH": "/opt/bin:$PATH"}),))

    plan = planned(spec, NO_GPUS, environ={"PATH": "/usr/bin"})

    assert variables(plan, "PATH") == [[], ["PATH=/opt/bin:/usr/bin"]]


def test_job_variable_may_extend_inherited_value() -> None:
    """As one of a service."""
    inherited = {"PATH": "/usr/bin", "COST": "$5", "PATHS": "x"}
    env = {"PATH": "/opt/bin:$PATH", "COST": "${COST}$$", "A": "$PATHS"}
    spec = with_inherited_values(of_a_file(job(services=(service(),), env=env)), inherited)

    plan = planned(spec, NO_GPUS, environ=inherited)

    assert plan.env["PATH"] == "/opt/bin:/usr/bin"
    assert variables(plan, "COST", "A") == [["COST=$5$", "A=x"]] * 2


def with_words(*args: str) -> Service:
    return service(program=WorkerProgram(ProgramKind.EXECUTABLE, "serve", args))


def main_with(*args: str) -> WorkerProgram:
    return WorkerProgram(ProgramKind.SCRIPT, "train.py", args)


@pytest.mark.parametrize("is_joined", [True, False])
@pytest.mark.parametrize(
    ("services", "script", "message", "name"),
    [
        ((with_words("$NOPE"),), main_with(), "rl.yaml:4 services.server: $NOPE", "NOPE"),
        ((with_words("${NOPE}"),), main_with(), "rl.yaml:4 services.server: $NOPE", "NOPE"),
        # Of a world that the service does not have.
        ((with_words("$RANK"),), main_with(), "rl.yaml:4 services.server: $RANK", "RANK"),
        ((with_words("$PORTS"),), main_with(), "rl.yaml:4 services.server: $PORTS", "PORTS"),
        (
            (service(env={"A": "$NOPE"}),),
            main_with(),
            "rl.yaml:4 services.server.env.A: $NOPE",
            "NOPE",
        ),
        # Variables of one service are not those of another program.
        ((service(env={"A": "1"}),), main_with("$A"), "the test: $A", "A"),
        ((service(),), main_with("costs $5"), "the test: $5", "5"),
    ],
)
def test_unset_variable_is_an_error(
    services: tuple[Service, ...],
    script: WorkerProgram,
    message: str,
    name: str,
    *,
    is_joined: bool,
) -> None:
    """In a dry run, too, for a typing error should not wait for the nodes."""
    spec = job(services=services, script=script, nproc_per_node=2)

    with pytest.raises(UsageError) as caught:
        planned(spec, NO_GPUS, ONE_NODE if is_joined else None)

    assert caught.value.message == f"{message} is not set"
    assert caught.value.hint == f"set it, or write $${name} for the text"


@pytest.mark.parametrize(
    "name",
    [
        *("PORT", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"),
        *("CLUSTERRUN_SERVER_URL", "CLUSTERRUN_NOPE_ADDR"),
    ],
)
def test_late_variables_stay_in_a_dry_run(name: str) -> None:
    """Ports and addresses are known once the nodes have joined."""
    spec = job(services=(with_words(f"${name}", f"${{{name}}}"),), script=main_with(f"${name}"))

    plan = planned(spec, NO_GPUS)

    assert plan.workers[1].command == ("serve", f"${name}", f"${{{name}}}")
    assert plan.workers[0].command[-1] == f"${name}"


def test_unknown_service_address_is_an_error() -> None:
    """A service that is not there has no address."""
    spec = job(services=(with_words("$CLUSTERRUN_NOPE_ADDR"),), nproc_per_node=2)

    with pytest.raises(UsageError, match=r"\$CLUSTERRUN_NOPE_ADDR is not set"):
        planned(spec, NO_GPUS, ONE_NODE)


def test_shell_commands_are_not_expanded() -> None:
    """A command that is a text is a shell's; words on the command line were."""
    text = WorkerProgram(ProgramKind.EXECUTABLE, "/bin/sh", ("-c", "echo $NOPE $$ ${PORT}"))
    spec = job(services=(service(program=text),), script=main_with("$NOPE", "$$"))
    spec = replace(spec, origins={**spec.origins, "script": COMMAND_LINE})

    plan = planned(spec, NO_GPUS)

    assert plan.workers[0].command[-2:] == ("$NOPE", "$$")
    assert plan.workers[1].command == ("/bin/sh", "-c", "echo $NOPE $$ ${PORT}")


@pytest.mark.parametrize(
    ("kind", "values", "command"),
    [
        (ProgramKind.SCRIPT, {}, ("python", "-u", "serve", "-v")),
        (ProgramKind.SCRIPT, {"python": "/opt/python"}, ("/opt/python", "-u", "serve", "-v")),
        (ProgramKind.MODULE, {}, ("python", "-u", "-m", "serve", "-v")),
        (ProgramKind.EXECUTABLE, {"python": "/opt/python"}, ("serve", "-v")),
    ],
)
def test_what_a_worker_of_a_service_executes(
    kind: ProgramKind, values: dict[str, Any], command: tuple[str, ...]
) -> None:
    """A script or a module in the job's interpreter, or in its own."""
    own = service(program=WorkerProgram(kind, "serve", ("-v",)), **values)

    main, worker = planned(job(services=(own,)), NO_GPUS).workers

    assert (main.command[:3], main.runs_python, main.service) == (
        ("python", "-u", "train.py"),
        True,
        None,
    )
    assert worker.command == command
    assert worker.runs_python is (kind is not ProgramKind.EXECUTABLE)
    assert worker.service == own


def test_the_local_rank_is_passed_to_the_main_program_only() -> None:
    """A service does not expect it."""
    values = {"nproc_per_node": 2, "pass_local_rank": "local-rank"}
    spec = job(services=(service(),), **values)

    commands = [worker.command for worker in planned(spec, NO_GPUS).workers]

    assert commands == [
        ("python", "-u", "train.py", "--local-rank=0", "--lr", "1"),
        ("python", "-u", "train.py", "--local-rank=1", "--lr", "1"),
        ("serve",),
    ]


# The world that a dry run assumes.


@pytest.mark.parametrize(
    ("services", "values", "workers", "programs"),
    [
        ((service(),), {}, 3, [("main", 0, {0: 3}), ("server", 3, {0: 1})]),
        (
            (service("a", nproc_per_node=2), service("b")),
            {"nnodes": 2, "node_rank": 1},
            4,
            [("main", 0, {0: 4, 1: 4}), ("a", 8, {0: 2, 1: 2}), ("b", 12, {0: 1, 1: 1})],
        ),
        (
            (service("a", nnodes=1), service("b", node_ranks=RankSet(((0, 0),)))),
            {"nnodes": 3, "node_rank": 0, "main_nodes": RankSet(((0, 1),))},
            2,
            [("main", 0, {0: 2, 1: 2}), ("a", 4, {2: 1}), ("b", 5, {0: 1})],
        ),
        # Nothing is left for it here: elsewhere it may have any number.
        (
            (service("a", nnodes=1, nproc_per_node=4),),
            {"nnodes": 3, "node_rank": 2},
            0,
            [("main", 0, {0: 1, 1: 1}), ("a", 2, {2: 4})],
        ),
        (
            (service("a", nnodes=1),),
            {"nnodes": 3, "node_rank": 2, "main_nodes": RankSet(((0, 0),))},
            0,
            [("main", 0, {0: 1}), ("a", 1, {2: 1})],
        ),
    ],
)
def test_the_world_that_a_dry_run_assumes(
    services: tuple[Service, ...],
    values: dict[str, Any],
    workers: int,
    programs: list[tuple[str, int, dict[int, int]]],
) -> None:
    """The main program has as many workers on its other nodes; the file has all of the services."""
    found = assumed_world(job(services=services, **values), workers)

    assert [
        (it.name, it.first, {int(node.node_rank): node.workers for node in it.nodes})
        for it in found.programs
    ] == programs
    assert (found.local_size, found.size) == (workers, sum(programs[0][2].values()))
    assert all(node.ports == () for it in found.programs for node in it.nodes)


def test_a_dry_run_has_ranks_but_no_ports() -> None:
    """They are chosen at the start."""
    spec = job(services=(service(nproc_per_node=2),), nproc_per_node=2, nnodes=2, node_rank=1)

    plan = planned(replace(spec, rendezvous=replace(spec.rendezvous, master_addr="node0")), NO_GPUS)

    assert [ranks(worker) for worker in plan.workers] == [
        "2 0 4 2 2 4 1 1 2 node0 - -",
        "3 1 4 2 3 4 1 1 2 node0 - -",
        "- - - - 2 4 1 1 2 node0 - -",
        "- - - - 3 4 1 1 2 node0 - -",
    ]
    assert plan.numbers == (2, 3, 6, 7)


def test_the_master_port_that_is_set_is_that_of_the_main_program() -> None:
    """As without services: a firewall may allow no other."""
    spec = job(services=(service(),), nproc_per_node=1, master_port=29500)

    assert variables(planned(spec, NO_GPUS), "MASTER_PORT") == [["MASTER_PORT=29500"], []]


# Binding.


def bound(plan: NodePlan) -> dict[str, str | None]:
    """Return the CPUs of each worker by its name; None: not bound."""
    return {
        plan.name(worker.local_rank): None if worker.cpus is None else str(worker.cpus)
        for worker in plan.workers
    }


def test_workers_of_all_programs_divide_the_cores_of_their_gpus() -> None:
    """Rank 2 and the server are near the same node; the judge, without GPUs, is not bound."""
    spec = job(
        services=(service(gpus_per_worker=1), service("judge")), numa_binding=NumaBinding.EXCLUSIVE
    )

    plan = planned(spec, FOUR)

    assert bound(plan) == {
        "rank 0": "0-1",
        "rank 1": "2-3",
        "rank 2": "4-5",
        "server rank 0": "6-7",
        "judge rank 0": None,
    }
    assert list(plan.all_warnings()) == []


def test_a_service_of_several_gpus_is_bound_near_all_of_them() -> None:
    """Its memory is there, too."""
    spec = job(
        services=(service(gpus_per_worker=3),),
        numa_binding=NumaBinding.NODE,
        numa_memory=NumaMemory.BIND,
    )

    plan = planned(spec, FOUR)

    assert bound(plan) == {"rank 0": "0-3", "server rank 0": "0-7"}
    assert [str(worker.memory) for worker in plan.workers] == ["bind 0", "bind 0,1"]
    assert [worker.numa_nodes for worker in plan.workers] == [(0,), (0, 1)]


def test_services_on_a_dgx_a100(tmp_path: Path) -> None:
    """Each worker is at the node of its GPU, as GPUs are numbered there."""
    here = inspect(Tree(write_tree(tmp_path, dgx_a100())), {}, None, "node7")
    spec = job(
        services=(service(nproc_per_node=2, gpus_per_worker=1),), numa_binding=NumaBinding.NODE
    )

    assert bound(planned(spec, here)) == {
        "rank 0": "48-63,176-191",
        "rank 1": "48-63,176-191",
        "rank 2": "16-31,144-159",
        "rank 3": "16-31,144-159",
        "rank 4": "112-127,240-255",
        "rank 5": "112-127,240-255",
        "server rank 0": "80-95,208-223",
        "server rank 1": "80-95,208-223",
    }


def test_a_captured_machine_whose_only_gpu_a_service_has() -> None:
    """The service is bound as a single worker would be."""
    here = inspect(tree_at(CAPTURES / "one_h200.json"), {}, None, "node7")
    alone = plan_alone(job(), here, 1)

    plan = planned(job(services=(service(gpus_per_worker=1),), gpus_per_worker=0), here)

    assert [len(worker.gpus) for worker in plan.workers] == [0, 1]
    assert plan.workers[1].gpus == alone.workers[0].gpus
    assert plan.workers[1].cpus == alone.workers[0].cpus
    assert variables(plan, CUDA) == [[f"{CUDA}="], [f"{CUDA}=0"]]


def test_a_strict_job_may_have_a_service_without_gpus() -> None:
    """It is not bound to any NUMA node."""
    spec = job(services=(service(),), numa_binding=NumaBinding.NODE, numa_strict=True)

    assert bound(planned(spec, FOUR))["server rank 0"] is None


@given(machines())
def test_binding_is_that_of_one_program_with_all_workers(generated: Generated) -> None:
    """Whichever of the last GPUs a service has, each GPU's worker gets the same CPUs and memory."""
    here = generated.machine
    count = len(here.visible)
    assume(count)
    for mode in NumaBinding:
        values = {"numa_binding": mode, "numa_memory": NumaMemory.PREFERRED}
        alone = plan_alone(job(**values), here, count)
        for taken in range(1, count + 1):
            own = service(nproc_per_node=taken, gpus_per_worker=1)
            spec = job(services=(own,), nnodes=2, node_rank=1, **values)

            plan = planned(spec, here)

            assert [(it.gpus, it.cpus, it.memory, it.numa_nodes) for it in plan.workers] == [
                (it.gpus, it.cpus, it.memory, it.numa_nodes) for it in alone.workers
            ]
            assert plan.env["OMP_NUM_THREADS"] == alone.env["OMP_NUM_THREADS"]
