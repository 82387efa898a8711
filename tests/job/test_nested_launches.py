"""A launch inside a worker ignores the settings of the outer launch."""

from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.nested_launches import (
    NESTED_WARNING,
    STEP_VARIABLE,
    WORKER_VARIABLES,
    outer_launch_variables,
)
from clusterrun.job.values import WorkerCount

from tests.captured import captured
from tests.command_lines import Flags
from tests.described import describe

WORKER = {
    **dict.fromkeys(WORKER_VARIABLES, "1"),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "3",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "CLUSTERRUN_NPROC_PER_NODE": "8",
    "CLUSTERRUN_NONSENSE": "1",
    "PET_MAX_RESTARTS": "3",
}


def test_variables_of_the_outer_launch_are_removed() -> None:
    """Worker variables and all CLUSTERRUN_ and PET_ variables."""
    names = outer_launch_variables(WORKER)

    assert set(names) == {
        *WORKER_VARIABLES,
        "CLUSTERRUN_NPROC_PER_NODE",
        "CLUSTERRUN_NONSENSE",
        "PET_MAX_RESTARTS",
    }


def test_only_existing_variables_are_removed() -> None:
    """The names are sorted."""
    environ = {"TORCHELASTIC_RUN_ID": "", "LOCAL_RANK": "0", "HOME": "/root"}

    assert outer_launch_variables(environ) == ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")


@pytest.mark.parametrize(
    ("address", "is_removed"), [("127.0.0.1:40123", True), ("localhost:28028", False)]
)
def test_ras_address_of_the_outer_launch_is_removed(address: str, *, is_removed: bool) -> None:
    """The outer worker listens on the loopback address; another address is the user's."""
    names = outer_launch_variables({**WORKER, "NCCL_RAS_ADDR": address})

    assert ("NCCL_RAS_ADDR" in names) is is_removed


@pytest.mark.parametrize("name", ["LOCAL_RANK", "TORCHELASTIC_RUN_ID"])
def test_one_worker_variable_is_not_an_outer_launch(name: str) -> None:
    """AzureML sets LOCAL_RANK itself."""
    assert outer_launch_variables({name: "0", "RANK": "0", "CLUSTERRUN_NNODES": "1"}) == ()


@pytest.mark.usefixtures("script")
def test_settings_of_the_outer_launch_are_ignored(folder: Path) -> None:
    """One warning says so; there is none for unknown variables."""
    (folder / "job.yaml").write_text("max_restarts: 2\n")

    resolved = describe("train.py", flags={"config": "job.yaml"}, environ=WORKER)

    assert resolved.job.setting("nproc_per_node") == Setting(WorkerCount.PER_GPU, "default")
    assert resolved.job.setting("max_restarts") == Setting(2, "job.yaml:1 max_restarts")
    assert resolved.warnings == (NESTED_WARNING,)
    assert "CLUSTERRUN_NPROC_PER_NODE" in resolved.unset


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("run_id", "step", "nodes"),
    [
        pytest.param("26.7", "", 2, id="another step of the job"),
        pytest.param("7.0", "", 2, id="a step of another job"),
        pytest.param("26.0", "", 1, id="this step"),
        pytest.param("mine", "26.7", 2, id="another step, by its own variable"),
        pytest.param("mine", "26.", 2, id="a batch script"),
        pytest.param("mine", "26.0", 1, id="this step, by its own variable"),
        pytest.param("mine", "", 1, id="nothing tells which step"),
        pytest.param("1.x", "", 1, id="likewise"),
        pytest.param(".0", "", 1, id="nor here"),
    ],
)
def test_step_started_by_a_worker_is_a_new_job(run_id: str, step: str, nodes: int) -> None:
    """Its tasks inherit the variables of the worker that called srun."""
    of_outer = {"TORCHELASTIC_RUN_ID": run_id, STEP_VARIABLE: step}
    environ = WORKER | captured("node.1") | of_outer

    resolved = describe("train.py", environ=environ)

    job = resolved.job
    assert (job.nnodes, job.workers.cluster == "slurm") == (nodes, nodes == 2)
    assert resolved.warnings == (NESTED_WARNING,)
    assert "RANK" in resolved.unset


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("name", "flags", "step"),
    [("node.1", {}, None), ("node.1", {"run_id": "mine"}, "26.0"), ("batch_of_one", {}, "32.")],
)
def test_workers_get_the_slurm_step(name: str, flags: Flags, step: str | None) -> None:
    """If the run id is the step, no variable is needed."""
    environ = captured(name)

    job = describe("train.py", flags=flags, environ=environ).job

    assert job.env.get(STEP_VARIABLE) == step
