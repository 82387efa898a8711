"""Where a job's output is kept."""

from pathlib import Path

from msgspec.structs import replace

from launcher.domain.ranks import NodeRank
from launcher.workers.log_layout import LogLayout
from tests.workers.fork_server_bench import plan_of, worker_of


def test_a_file_for_each_stream_of_each_rank() -> None:
    """Told apart by run, attempt and node; named by the global rank."""
    layout = LogLayout(Path("/logs"), "run-7")
    plan = plan_of(["true"])
    later = replace(plan, world=replace(plan.world, attempt=2, node_rank=NodeRank(3)))

    files = layout.files(later, worker_of(1))

    folder = Path("/logs/run-7/attempt-2/node7-3")
    assert files == (folder / "rank-9.out", folder / "rank-9.err")


def test_the_folder_of_the_run() -> None:
    """It is what the link to the latest run leads to."""
    assert LogLayout(Path("/logs"), "run-7").run == Path("/logs/run-7")
