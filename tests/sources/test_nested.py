"""A launch inside a worker takes over nothing of the outer launch."""

from pathlib import Path

import pytest

from launcher.domain.facts import Fact
from launcher.domain.job import WorkerCount
from launcher.sources.nested import NESTED_WARNING, WORKER_VARIABLES, left_by_outer_launch
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


def test_all_worker_variables_go() -> None:
    """What places a worker in the outer job, and every option of ours, is to be unset."""
    names = left_by_outer_launch(WORKER)

    assert set(names) == {
        *WORKER_VARIABLES,
        "CLUSTERRUN_NPROC_PER_NODE",
        "CLUSTERRUN_NONSENSE",
        "PET_MAX_RESTARTS",
    }


def test_only_what_is_there_goes() -> None:
    """Names that the environment lacks need no unsetting; the order is the alphabet's."""
    environ = {"TORCHELASTIC_RUN_ID": "", "LOCAL_RANK": "0", "HOME": "/root"}

    assert left_by_outer_launch(environ) == ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")


@pytest.mark.parametrize("name", ["LOCAL_RANK", "TORCHELASTIC_RUN_ID"])
def test_one_mark_alone_is_no_worker(name: str) -> None:
    """AzureML sets LOCAL_RANK on its own, and that is no outer launch."""
    assert left_by_outer_launch({name: "0", "RANK": "0", "CLUSTERRUN_NNODES": "1"}) == ()


@pytest.mark.usefixtures("script")
def test_the_outer_launch_is_no_source() -> None:
    """Its variables are not read, its unknown ones not complained of, and one line says so."""
    resolved = describe("train.py", environ=WORKER)

    assert resolved.job.nproc_per_node == Fact(WorkerCount.PER_GPU, "default")
    assert resolved.job.max_restarts == Fact(0, "default")
    assert resolved.warnings == (NESTED_WARNING,)
    assert "CLUSTERRUN_NPROC_PER_NODE" in resolved.unset


@pytest.mark.usefixtures("script")
def test_flags_and_job_file_still_hold(folder: Path) -> None:
    """What was said to this launch itself counts as ever."""
    (folder / "job.yaml").write_text("max_restarts: 2\n")

    job = describe(
        "train.py", flags={"nproc_per_node": "3", "config": "job.yaml"}, environ=WORKER
    ).job

    assert job.nproc_per_node == Fact(3, "--nproc-per-node")
    assert job.max_restarts == Fact(2, "job.yaml:1 max_restarts")
