"""The plan of a node: commands, variables and warnings."""

from collections.abc import Mapping
from typing import Any

import pytest
from clusterrun.bounds import GlobalRank, NodeRank
from clusterrun.cpuset import CpuSet
from clusterrun.errors import UsageError
from clusterrun.job.job import MAIN, Job, ProgramKind, WorkerProgram
from clusterrun.job.options import NumaBinding
from clusterrun.job.values import WorkerCount, variable_name
from clusterrun.machine.machine import Machine
from clusterrun.planning.node_plan import RUN_PATH
from clusterrun.planning.plan import NodePlan, NumberedProgram, World
from clusterrun.planning.variables import user_environment
from msgspec.structs import replace

from tests.described import describe
from tests.plans import job, machine, planned, world

TWO = machine({0: "0-3", 1: "4-7"}, [0, 1])


def plan(
    spec: Job,
    here: Machine = TWO,
    size: int = 2,
    environ: Mapping[str, str] | None = None,
    **arguments: Any,
) -> NodePlan:
    return planned(spec, here, size, environ, **arguments)


def test_ranks_of_a_later_node_and_attempt() -> None:
    """Global ranks follow those of the nodes before."""
    second = World(
        run_id="of node 0",
        attempt=2,
        node_rank=NodeRank(1),
        nodes=2,
        first_rank=GlobalRank(3),
        local_size=2,
        size=5,
        first_role_rank=GlobalRank(1),
        role_size=3,
        master_addr="node6",
        master_port=1234,
    )

    found = planned(job(), TWO, second, error_files="/e")

    assert [(worker.rank, worker.local_rank) for worker in found.workers] == [(3, 0), (4, 1)]
    variables = found.workers[1].env
    expected = {
        "RANK": "4",
        "LOCAL_RANK": "1",
        "ROLE_RANK": "2",
        "ROLE_WORLD_SIZE": "3",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "5",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_ERROR_FILE": "/e/attempt-2/rank-4/error.json",
    }
    assert {name: variables[name] for name in expected} == expected


def test_job_variables_are_equal_in_every_attempt() -> None:
    """The fork server has these variables while it preloads modules."""
    first = plan(job())
    second = planned(job(), TWO, world(2, attempt=1))

    assert first.env == second.env
    assert first.workers[0].env != second.workers[0].env


def test_unknown_master_port_is_not_set() -> None:
    """A dry run chooses no port."""
    found = planned(job(), TWO, world(2, master_port=None))

    assert "MASTER_PORT" not in found.workers[0].env
    assert "TORCHELASTIC_ERROR_FILE" not in found.workers[0].env


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_SIGNALS_TO_HANDLE"],
)
def test_user_variables_are_kept(name: str) -> None:
    """They may be inherited or in the job's env; those of an outer launch do not count."""
    assert name not in plan(job(), environ={name: "7"}).env
    assert plan(job(env={name: "8"}), environ={name: "7"}).env[name] == "8"
    assert plan(job(), environ={name: "7"}, unset=(name,)).env[name] != "7"


def test_signals_option_overrides_inherited_variable() -> None:
    """The option is for this job; its default is weaker than what the user has exported."""
    name, executable = "TORCHELASTIC_SIGNALS_TO_HANDLE", {"no_python": True}
    asked = describe("true", flags={**executable, "signals_to_handle": "SIGTERM"}).job
    plain = describe("true", flags=executable).job

    assert plan(asked, environ={name: "SIGUSR2"}).env[name] == "SIGTERM"
    assert name not in plan(plain, environ={name: "SIGUSR2"}).env


@pytest.mark.parametrize(
    ("workers", "environ", "threads"),
    [(2, {}, "1"), (1, {}, None), (2, {"OMP_NUM_THREADS": "7"}, None)],
)
def test_omp_num_threads_as_torchrun(
    workers: int, environ: Mapping[str, str], threads: str | None
) -> None:
    """Several workers have one thread each; a single worker and the user's value are unchanged."""
    found = plan(job(as_torchrun=True), size=workers, environ=environ)

    assert found.env.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("what", "environ", "workers", "expected"),
    [
        ({"coloured": True}, {}, 2, True),
        ({"coloured": True}, {"FORCE_COLOR": "0"}, 2, False),
        ({"coloured": True, "env": {"NO_COLOR": "1"}}, {}, 2, False),
        ({"coloured": True}, {}, 1, False),
        ({"coloured": False}, {}, 2, False),
    ],
    ids=["terminal", "user's own", "no colour", "one worker", "no terminal"],
)
def test_force_color_for_several_workers(
    what: Mapping[str, Any], environ: Mapping[str, str], workers: int, *, expected: bool
) -> None:
    """Several workers print to pipes that end at a terminal; a single worker has the terminal.

    There rich draws no bar again and again.
    """
    found = plan(job(**what), size=workers, environ=environ)

    assert ("FORCE_COLOR" in found.env) is expected
    assert (found.env.get("TTY_INTERACTIVE") == "0") is (expected or "FORCE_COLOR" in environ)


def test_user_environment() -> None:
    """It is inherited without the variables of an outer launch; the job's own variables win."""
    environ = {"CUDA_VISIBLE_DEVICES": "0", "RANK": "3", "HOME": "/"}

    found = user_environment(job(env={"CUDA_VISIBLE_DEVICES": "1"}), environ, ["RANK"])

    assert found == {"CUDA_VISIBLE_DEVICES": "1", "HOME": "/"}


def test_env_cannot_set_worker_variables() -> None:
    """Every variable of the contract is refused."""
    found = plan(job(), error_files="/e")
    theirs = {
        "OMP_NUM_THREADS",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
    }

    for name in {*found.env, *found.workers[0].env} - theirs:
        with pytest.raises(UsageError):
            variable_name(name)


@pytest.mark.parametrize(
    ("program", "command"),
    [
        (WorkerProgram(ProgramKind.SCRIPT, "a.py", ("-x", "1")), ("py", "-u", "a.py", "-x", "1")),
        (
            WorkerProgram(ProgramKind.MODULE, "p.train", ("-x",)),
            ("py", "-u", "-m", "p.train", "-x"),
        ),
        (
            WorkerProgram(ProgramKind.RUN_PATH, "app", ("-x",)),
            ("py", "-u", "-c", RUN_PATH, "app", "-x"),
        ),
        (WorkerProgram(ProgramKind.EXECUTABLE, "run.sh", ("-x",)), ("run.sh", "-x")),
    ],
)
def test_worker_commands(program: WorkerProgram, command: tuple[str, ...]) -> None:
    """The job's interpreter runs unbuffered; an executable has none."""
    found = plan(job(script=program, python="py"))

    assert found.workers[0].command == command


def test_pass_local_rank() -> None:
    """As torch.distributed.launch passed it: before all other arguments."""
    options = {"pass_local_rank": "local_rank"}

    found = planned(job(**options, python="py"), machine({0: "0-3"}, []), 2)

    arguments = [worker.command[3:] for worker in found.workers]
    assert arguments == [
        ("--local_rank=0", *arguments[0][1:]),
        ("--local_rank=1", *arguments[0][1:]),
    ]


def test_no_python_signals_the_group() -> None:
    """A shell passes no signals on; a Python script handles its own."""
    shell = WorkerProgram(ProgramKind.EXECUTABLE, "run.sh", ())

    of_shell, of_python = plan(job(script=shell)), plan(job())

    assert not of_shell.workers[0].runs_python
    assert of_python.workers[0].runs_python


def test_plan_has_the_binding() -> None:
    """The plan has GPUs, nodes, CPUs and warning of each worker."""
    here = machine({0: "0-3", 1: "4-7"}, [1, None])

    first, second = plan(job(numa_binding=NumaBinding.NODE), here).workers

    assert (first.gpus, first.numa_nodes, str(first.cpus)) == (here.gpus[:1], (1,), "4-7")
    assert (second.gpus, second.numa_nodes, second.cpus) == (here.gpus[1:], (), None)
    assert (
        second.warning == "not bound: the NUMA node of its GPU is unknown; give it with --numa-map"
    )


def test_numa_strict_accepts_bound_workers() -> None:
    """Idle CPUs are only warned about."""
    here = machine({0: "0-3", 1: "4-7", 2: "8-11"}, [0, 1])

    assert plan(job(numa_strict=True, numa_binding=NumaBinding.NODE), here).warnings


def with_slices() -> Machine:
    """Return a machine with three slices of one GPU."""
    here = machine({0: "0-3"}, [0, 0, 0])
    slices = (replace(gpu, index=0, uuid=f"MIG-{gpu.index}", parent="GPU") for gpu in here.gpus)
    return replace(here, visible=tuple(slices))


PACKAGES = ["0-3", "4-7"]
UNEVEN = {0: "0-39", 1: "40-73", 2: "74-99"}
IDLE_NODE = machine({0: "0-3", 1: "4-7", 2: "8-11"}, [0, 1])
SHORT = "2 workers share 1 CPU (3): clusterrun itself may use no others;"
UNUSED = "no worker is bound to CPUs"


@pytest.mark.parametrize(
    ("options", "here", "workers", "warning"),
    [
        # A task of srun without -c has one core.
        (
            {},
            machine({0: "0-7"}, [0, 0], allowed="3"),
            2,
            f"{SHORT} add -c to srun, or --bind-to none to mpirun",
        ),
        (
            {},
            replace(machine({0: "0-3"}, allowed="0"), isolated=CpuSet((1, 2, 3))),
            2,
            "2 workers share 1 CPU (0): CPUs 1-3 are isolated (isolcpus)",
        ),
        # The machine has no more CPUs: no scheduler is the reason.
        ({}, machine({0: "0-1"}), 4, "4 workers share 2 CPUs (0-1)"),
        (
            {},
            machine({0: "0-15"}, quota=1.5),
            8,
            "8 workers share 1.5 CPUs, the quota of their cgroup",
        ),
        ({}, machine({0: "0-1"}, quota=2.5), 4, "4 workers share 2 CPUs (0-1)"),
        *(
            (
                {"nproc_per_node": count},
                machine({0: "0-15"}, quota=2.5),
                2,
                (
                    "2 workers: the cgroup may use 2.5 of 16 CPUs (quota);"
                    " for more, give --nproc-per-node a number"
                ),
            )
            for count in (WorkerCount.CPU, WorkerCount.AUTO)
        ),
        ({"nproc_per_node": 2}, machine({0: "0-15"}, quota=2.5), 2, ""),
        ({"nproc_per_node": WorkerCount.CPU}, machine({0: "0-1"}, quota=2.5), 2, ""),
        ({"nproc_per_node": WorkerCount.AUTO}, machine({0: "0-15"}, [0, 0], quota=2.5), 2, ""),
        # A mode that was asked for by name is not silently left out.
        *(
            (
                {"numa_binding": mode},
                here,
                2,
                f"not bound: {why} (numa_binding is {mode.value}: the test)",
            )
            for mode in (NumaBinding.NODE, NumaBinding.NEAR, NumaBinding.EXCLUSIVE)
            for here, why in (
                (machine({0: "0-3", 1: "4-7", 2: "8-11"}), "2 workers for 3 NUMA nodes"),
                (machine({}, allowed="0-7"), "the kernel shows no NUMA nodes"),
                (machine({}, [None, None], allowed="0-7"), "the kernel shows no NUMA nodes"),
            )
        ),
        ({"numa_binding": NumaBinding.NONE}, machine({}, allowed="0-7"), 2, ""),
        ({}, machine({}, allowed="0-7"), 2, ""),
        # More than a quarter of the allowed CPUs are idle.
        (
            {"numa_binding": NumaBinding.NODE},
            IDLE_NODE,
            2,
            f"{UNUSED} 8-11, 4 of 12; to use them: --numa-binding near",
        ),
        ({}, IDLE_NODE, 2, ""),
        # The mode near adds no CPUs of another package.
        (
            {},
            machine({0: "0-3", 1: "4-7"}, [0, 0], packages=PACKAGES),
            2,
            f"{UNUSED} 4-7, 4 of 8; to use them: --numa-binding none",
        ),
        # To share all cores would leave the worker that is alone on its node with less.
        ({}, machine(UNEVEN, [0, 1, 1], packages=list(UNEVEN.values())), 3, ""),
        # The mode near adds none, and no binding leaves nobody with less.
        (
            {"numa_binding": NumaBinding.EXCLUSIVE},
            machine({0: "0-3", 1: "4-7"}, [0, 0], packages=PACKAGES),
            2,
            f"{UNUSED} 4-7, 4 of 8; to use them: --numa-binding none",
        ),
        # The other half is near a GPU that is hidden from us.
        (
            {"numa_binding": NumaBinding.NODE},
            machine({0: "0-3", 1: "4-7"}, [0, 1], visible=[0], packages=PACKAGES),
            1,
            "",
        ),
        # A worker that is not bound may run on any CPU.
        ({}, machine({0: "0-3", 1: "4-7"}, [0, None], packages=PACKAGES), 2, ""),
        (
            {"gpus_per_worker": 2},
            machine({0: "0-3"}, [0, 0, 0]),
            1,
            "no worker uses GPU 2: 1 worker has 2 each",
        ),
        # All slices have the number of their GPU.
        (
            {"gpus_per_worker": 1, "virtual_local_rank": True},
            with_slices(),
            1,
            "no worker uses GPUs MIG-1,MIG-2: 1 worker has 1 each",
        ),
        # The mode near would add the CPUs of the GPU that is hidden from us, and none of these.
        (
            {"numa_binding": NumaBinding.EXCLUSIVE},
            machine({0: "0-3", 1: "4-7"}, [0, 0], visible=[0], packages=PACKAGES),
            1,
            f"{UNUSED} 4-7, 4 of 8; to use them: --numa-binding none",
        ),
        # Half of the idle node is for the GPU that is hidden from us: a quarter of all is not much.
        (
            {"numa_binding": NumaBinding.NODE},
            machine({0: "0-3", 1: "4-7", 2: "8-15"}, [0, 1], visible=[0]),
            1,
            f"{UNUSED} 8-15, 8 of 16; to use them: --numa-binding none",
        ),
        (
            {"numa_binding": NumaBinding.NODE},
            machine({0: "0-3", 1: "4-7", 2: "8-19"}, [0, 1], visible=[0]),
            1,
            f"{UNUSED} 8-13, 6 of 20; to use them: --numa-binding near",
        ),
        # Half of the node is for the GPU that is hidden from us.
        ({"numa_binding": NumaBinding.EXCLUSIVE}, machine({0: "0-7"}, [0, 0], visible=[0]), 1, ""),
    ],
)
def test_warnings(options: Mapping[str, Any], here: Machine, workers: int, warning: str) -> None:
    """A warning on CPUs and GPUs that are short or unused names the option that changes it."""
    assert plan(job(**options), here, workers).warnings == ((warning,) if warning else ())


def test_kmp_affinity_gives_a_warning() -> None:
    """Intel's runtime would bind the threads again; that matters only if workers are bound."""
    expected = "KMP_AFFINITY=compact is set: Intel's OpenMP uses it to bind its threads again"

    assert plan(job(), environ={"KMP_AFFINITY": "compact"}).warnings == (expected,)
    assert not plan(
        job(numa_binding=NumaBinding.NONE), environ={"KMP_AFFINITY": "compact"}
    ).warnings


def test_the_program_of_a_worker() -> None:
    """By its number in the job; without services there is one program."""
    assert world(4).program_of(3) == NumberedProgram(MAIN, 0, 4)
