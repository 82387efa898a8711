"""The programs of a job with services: ranks, addresses, variables. ``nodes/services.txt`` has their GPUs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusterrun.bounds import NodeRank
from clusterrun.errors import UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job import MAIN, Job, ProgramKind, WorkerProgram
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.job.program import COMMAND_LINE
from clusterrun.job.services import Service, known_values
from clusterrun.job.values import RankSet
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
from clusterrun.planning.services import MAX_LIST_LENGTH, addresses_of, assumed_programs
from clusterrun.planning.variables import user_environment
from clusterrun.planning.worker_slots import worker_slots
from hypothesis import assume, given
from msgspec.structs import replace

from tests.planning.generated import Generated, machines
from tests.plans import job, machine, service, world
from tests.plans import planned as plan_alone
from tests.real_machines import CAPTURES, tree_at

FOUR = machine({0: "0-3", 1: "4-7"}, [0, 0, 1, 1])
NO_GPUS = machine({0: "0-3", 1: "4-7"})


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
        where or assumed_world(spec, main_workers(spec, here), assumed_programs(spec, here)),
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


@pytest.mark.parametrize("address", ["", "0000:10:00.0"], ids=["no bus", "partitions of one"])
def test_gpus_without_addresses_are_distinguished(address: str) -> None:
    """The main program keeps those that the service does not have."""
    gpus = tuple(replace(gpu, bdf=address) for gpu in FOUR.gpus)
    here = replace(FOUR, gpus=gpus, visible=gpus, pci_gpus=())
    spec = job(services=(service(gpus_per_worker=1),))

    assert [it.gpus for it in planned(spec, here).workers] == [(gpu,) for gpu in gpus]


CUDA = "CUDA_VISIBLE_DEVICES"


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
    own = service("judge", gpus_per_worker=1, env={"NCCL_RAS_ENABLE": "0"})
    services = (service(gpus_per_worker=1), own, service("store", gpus_per_worker=0))
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


def test_node_with_only_services_prepares_no_script() -> None:
    """Its workers know where the main program is."""
    spec = job(services=(service(nnodes=1),), nnodes=2, node_rank=1, main_nodes=RankSet(((0, 0),)))
    programs = (program("main", 0, {0: 2}), program("server", 2, {1: 1}))

    plan = planned(spec, NO_GPUS, joined(programs, 1, 2))

    assert [(worker.rank, worker.local_rank) for worker in plan.workers] == [(2, 0)]
    assert plan.workers[0].env["CLUSTERRUN_MAIN_ADDR"] == "10.0.0.0:1000"
    assert preparation_of(spec, plan, {}) is None


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


# Addresses.


def test_every_worker_has_the_addresses_of_all_programs() -> None:
    """The first one, all of them, their hosts, and where the workers of a program may meet.

    An IPv6 address is in brackets before a port; alone, it is not.
    """
    judge = program("judge_2", 1, {0: 1, 1: 2}, ["fd00::1", "node1"])

    assert addresses_of((program("main", 0, {0: 1}), judge)) == {
        "CLUSTERRUN_MAIN_ADDR": "10.0.0.0:1000",
        "CLUSTERRUN_MAIN_URL": "http://10.0.0.0:1000",
        "CLUSTERRUN_MAIN_ADDRS": "10.0.0.0:1000",
        "CLUSTERRUN_MAIN_URLS": "http://10.0.0.0:1000",
        "CLUSTERRUN_MAIN_HOSTS": "10.0.0.0",
        "CLUSTERRUN_MAIN_MASTER": "10.0.0.0:2000",
        "CLUSTERRUN_JUDGE_2_ADDR": "[fd00::1]:1001",
        "CLUSTERRUN_JUDGE_2_URL": "http://[fd00::1]:1001",
        "CLUSTERRUN_JUDGE_2_ADDRS": "[fd00::1]:1001,node1:1002,node1:1003",
        "CLUSTERRUN_JUDGE_2_URLS": "http://[fd00::1]:1001,http://node1:1002,http://node1:1003",
        "CLUSTERRUN_JUDGE_2_HOSTS": "fd00::1,node1",
        "CLUSTERRUN_JUDGE_2_MASTER": "[fd00::1]:2001",
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
    own = service("server", "serve", text, nproc_per_node=2)

    plan = planned(job(services=(own,), nproc_per_node=2), NO_GPUS, ONE_NODE)

    assert plan.workers[2].command == ("serve", expected)


def of_a_file(spec: Job, inherited: Mapping[str, str] | None = None) -> Job:
    """Return the job with variables from a job file, not from the command line."""
    texts = {name: Setting(text, f"rl.yaml:2 {name}") for name, text in spec.env.items()}
    known, late = known_values(texts, inherited or {})
    return replace(
        spec,
        program=replace(spec.program, env=tuple((name, it.value) for name, it in known.items())),
        late_env=tuple((name, it.value) for name, it in late.items()),
        origins={**spec.origins, **{f"env.{name}": it.origin for name, it in texts.items()}},
    )


def test_command_line_variables_are_not_expanded_again() -> None:
    typed = {"TEXT": Setting("a$b", "--env")}

    assert known_values(typed, {"b": "1"}) == (typed, {})
    plan = planned(job(services=(service(),), env={"TEXT": "a$b"}), NO_GPUS, ONE_NODE)

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


def test_job_variable_may_extend_inherited_value() -> None:
    """It is known before the nodes join; a service may extend it again."""
    inherited = {"PATH": "/usr/bin", "COST": "$5", "PATHS": "x"}
    env = {"PATH": "/opt/bin:$PATH", "COST": "${COST}$$", "A": "$PATHS"}
    own = service(env={"PATH": "/srv/bin:$PATH"})
    spec = of_a_file(job(services=(own,), env=env), inherited)

    plan = planned(spec, NO_GPUS, environ=inherited)

    assert (spec.env, spec.late_env) == (
        {"PATH": "/opt/bin:/usr/bin", "COST": "$5$", "A": "x"},
        (),
    )
    assert {name: plan.env[name] for name in env} == spec.env
    assert variables(plan, "PATH") == [[], ["PATH=/srv/bin:/opt/bin:/usr/bin"]]


def test_variables_may_refer_to_those_before() -> None:
    """To the job's, known or not, and those of the same service."""
    env = {
        "DIR": "/m",
        "SERVER": "$CLUSTERRUN_SERVER_URL",
        "API": "$SERVER/v1",
        "RUNS": "$DIR/runs",
    }
    own = service(env={"B": "$API/b", "C": "$B/c", "SERVER": "own", "D": "$SERVER"})
    spec = of_a_file(job(services=(own,), nproc_per_node=2, env=env))

    plan = planned(spec, NO_GPUS, ONE_NODE)
    before = planned(spec, NO_GPUS)

    url = "http://10.0.0.0:1002"
    assert spec.env == {"DIR": "/m", "RUNS": "/m/runs"}
    assert variables(plan, "SERVER", "API", "B", "C", "D") == [
        [f"SERVER={url}", f"API={url}/v1"],
        [f"SERVER={url}", f"API={url}/v1"],
        ["SERVER=own", f"API={url}/v1", f"B={url}/v1/b", f"C={url}/v1/b/c", "D=own"],
    ]
    assert variables(before, "API")[0] == ["API=$CLUSTERRUN_SERVER_URL/v1"]


@pytest.mark.parametrize("name", ["PORT", "RANK", "CLUSTERRUN_SERVER_URL", "CUDA_VISIBLE_DEVICES"])
def test_inherited_value_of_a_workers_variable_is_not_used(name: str) -> None:
    """A platform, or an outer job, may have set it."""
    spec = of_a_file(job(services=(service(),), env={"A": f"${name}"}), {name: "inherited"})

    assert (spec.env, spec.late_env) == ({}, (("A", f"${name}"),))


def test_address_of_another_node_is_known_once_it_has_joined() -> None:
    """Before, that of a program which begins on node 0 is known; an inherited one is another program's."""
    here = {"nnodes": 4, "node_rank": 3, "master_addr": "n0", "gpus_per_worker": 0}
    last, all_nodes = service("last", "serve", "$MASTER_ADDR", nnodes=1), service("every")
    spec = job(services=(last, all_nodes), **here)

    plan = planned(spec, NO_GPUS, environ={"MASTER_ADDR": "inherited"})

    assert variables(plan, "MASTER_ADDR") == [["MASTER_ADDR=n0"], [], ["MASTER_ADDR=n0"]]
    assert plan.workers[1].command == ("serve", "$MASTER_ADDR")


def main_with(*args: str) -> WorkerProgram:
    return WorkerProgram(ProgramKind.SCRIPT, "train.py", args)


@pytest.mark.parametrize(
    ("own", "script", "message", "name"),
    [
        (
            service("server", "serve", "$NOPE"),
            main_with(),
            "rl.yaml:4 services.server: $NOPE",
            "NOPE",
        ),
        (
            service(env={"A": "$NOPE"}),
            main_with(),
            "rl.yaml:4 services.server.env.A: $NOPE",
            "NOPE",
        ),
        (service(env={"A": "1"}), main_with("$A"), "the test: $A", "A"),
        (service(), main_with("costs $5"), "the test: $5", "5"),
        (service(env={"A": "/x:$A"}), main_with(), "rl.yaml:4 services.server.env.A: $A", "A"),
    ],
)
def test_unset_variable_is_an_error(
    own: Service, script: WorkerProgram, message: str, name: str
) -> None:
    """In a dry run, too: see ``nodes/services.txt``."""
    spec = job(services=(own,), script=script, nproc_per_node=2)

    with pytest.raises(UsageError) as caught:
        planned(spec, NO_GPUS, ONE_NODE)

    assert caught.value.message == f"{message} is not set"
    assert caught.value.hint == f"set it, or write $${name} for the text"


def test_unknown_service_address_is_an_error() -> None:
    """A service that is not there has no address."""
    spec = job(services=(service("server", "serve", "$CLUSTERRUN_NOPE_ADDR"),), nproc_per_node=2)

    with pytest.raises(UsageError, match=r"\$CLUSTERRUN_NOPE_ADDR is not set"):
        planned(spec, NO_GPUS, ONE_NODE)


def test_shell_commands_are_not_expanded() -> None:
    """A command that is a text is a shell's; words on the command line were."""
    shell = service("server", "/bin/sh", "-c", "echo $NOPE $$ ${PORT}", in_shell=True)
    listed = service("listed", "/bin/sh", "-c", 'echo "$$1"', "sh", "$ROLE_NAME")
    spec = job(services=(shell, listed), script=main_with("$NOPE", "$$"))
    spec = replace(spec, origins={**spec.origins, "script": COMMAND_LINE})

    plan = planned(spec, NO_GPUS)

    assert plan.workers[0].command[-2:] == ("$NOPE", "$$")
    assert plan.workers[1].command == ("/bin/sh", "-c", "echo $NOPE $$ ${PORT}")
    assert plan.workers[2].command == ("/bin/sh", "-c", 'echo "$1"', "sh", "listed")


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


# Binding.


def test_services_on_a_dgx_a100(eight_gpus: Path) -> None:
    """Each worker is at the node of its GPU, as GPUs are numbered there."""
    here = inspect(Tree(eight_gpus), {}, None, "node7")
    own = service(nproc_per_node=2, gpus_per_worker=1)

    plan = planned(job(services=(own,), numa_binding=NumaBinding.NODE), here)

    nodes = ["48-63,176-191", "16-31,144-159", "112-127,240-255", "80-95,208-223"]
    assert [str(worker.cpus) for worker in plan.workers] == [cpus for cpus in nodes for _ in "01"]


def test_a_captured_machine_whose_only_gpu_a_service_has() -> None:
    """The service is bound as a single worker would be."""
    here = inspect(tree_at(CAPTURES / "one_h200.json"), {}, None, "node7")
    alone = plan_alone(job(), here, 1)

    plan = planned(job(services=(service(gpus_per_worker=1),), gpus_per_worker=0), here)

    assert [len(worker.gpus) for worker in plan.workers] == [0, 1]
    assert plan.workers[1].gpus == alone.workers[0].gpus
    assert plan.workers[1].cpus == alone.workers[0].cpus
    assert variables(plan, CUDA) == [[f"{CUDA}="], [f"{CUDA}=0"]]


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
