"""Where a job's output is kept."""

from pathlib import Path

from msgspec.structs import replace

from tests.workers.door import (
    LogLayout,
    NodeRank,
)
from tests.workers.fork_server_bench import plan_of, worker_of


def test_a_file_for_each_stream_of_each_rank() -> None:
    """Their folders name run, attempt and node; their names have the global rank."""
    layout = LogLayout(Path("/logs"), "run-7")
    plan = plan_of(["true"])
    later = replace(plan, world=replace(plan.world, attempt=2, node_rank=NodeRank(3)))

    files = layout.files(later, worker_of(1))

    folder = Path("/logs/run-7/attempt-2/node7-3")
    assert files == (folder / "rank-9.out", folder / "rank-9.err")


def test_as_torchrun_names_them() -> None:
    """Programs look for these names: local rank, in a folder of this node's own."""
    layout = LogLayout(Path("/logs"), "7", torchrun_folder="7_00c0ffee")
    plan = plan_of(["true"])
    later = replace(plan, world=replace(plan.world, attempt=2, node_rank=NodeRank(3)))

    folder = Path("/logs/7_00c0ffee/attempt_2")
    out, err = folder / "1/stdout.log", folder / "1/stderr.log"
    assert layout.files(later, worker_of(1)) == (out, err)
    assert replace(layout, one_file=True).files(later, worker_of(1)) == (out, out)
    assert layout.attempt(2) == folder
    assert layout.filtered_files(later)[0] == folder / "filtered_stdout.log"


def test_the_folder_of_the_run() -> None:
    """The link to the latest run leads there."""
    assert LogLayout(Path("/logs"), "run-7").run == Path("/logs/run-7")
