"""The plan of a node: commands and variables; ``nodes/`` has binding and warnings."""

from collections.abc import Mapping
from typing import Any

import pytest
from clusterrun.bounds import GlobalRank, LocalRank, NodeRank
from clusterrun.errors import UsageError
from clusterrun.job.job import MAIN, Job, ProgramKind, WorkerProgram
from clusterrun.job.values import variable_name
from clusterrun.planning.node_plan import RUN_PATH
from clusterrun.planning.plan import NodePlan, NumberedProgram, World
from clusterrun.planning.variables import paddle_variables, user_environment
from msgspec.structs import replace

from tests.described import describe
from tests.plans import job, machine, planned, world

TWO = machine({0: "0-3", 1: "4-7"}, [0, 1])


def plan(spec: Job, environ: Mapping[str, str] | None = None, **arguments: Any) -> NodePlan:
    return planned(spec, TWO, 2, environ, **arguments)


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
    assert found.workers[0].runs_python is (program.kind is not ProgramKind.EXECUTABLE)


def test_paddle_rejects_nodes_with_different_numbers_of_workers() -> None:
    """A worker can't know the ports of the other workers."""
    two_nodes = replace(world(2), nodes=2, size=5)

    with pytest.raises(UsageError, match="2 nodes have 5 workers, but this one has 2"):
        paddle_variables(job(hosts=("a", "b")), two_nodes, LocalRank(0))


def test_the_program_of_a_worker() -> None:
    """By its number in the job; without services there is one program."""
    assert world(4).program_of(3) == NumberedProgram(MAIN, 0, 4)
