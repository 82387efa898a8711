"""Reports of a fake NCCL: below stacks, and of a hang that only NCCL shows."""

import json

from tests.commands.run_commands import assert_runs_until_stopped, run_command, start_job
from tests.contract.launched import Launcher
from tests.workers.fake_nccl_ras import FakeRank, job, serving

PRINTS = """
import os, time
print("begun", os.getpid(), flush=True)
while True:
    print("alive", flush=True)
    sum(range(100000))
    time.sleep(0.05)
"""

LATE = "behind: rank 1 launched AllReduce 1203 times"


def test_stacks_include_nccl_report(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """NCCL is queried because the user has set its address; otherwise it needs an NVIDIA GPU."""
    with serving([*job(1), FakeRank({"AllReduce": 1203})]) as ras:
        running = start_job(clusterrun, {**runtime, "NCCL_RAS_ADDR": ras.address}, PRINTS)
        text = run_command(runtime, "stacks")
        as_json = json.loads(run_command(runtime, "stacks", "--json").stdout)
        one = run_command(runtime, "stacks", "--rank=1")

    heading, line = text.stdout.splitlines()[-2:]
    assert heading == "NCCL:"
    assert line.endswith(LATE), text.stdout
    assert [each.endswith(LATE) for each in as_json["nccl"]] == [True]
    assert "NCCL" not in one.stdout
    assert_runs_until_stopped(running, runtime)


def test_hang_found_by_nccl_counts(clusterrun: Launcher, runtime: dict[str, str]) -> None:
    """Ranks print and main threads run, but the same rank is behind for the whole timeout."""
    with serving([*job(1), FakeRank({"AllReduce": 1203})]) as ras:
        running = start_job(
            clusterrun,
            {**runtime, "NCCL_RAS_ADDR": ras.address},
            PRINTS,
            *("--hang-timeout=4", "--on-hang=stop", "--shutdown-timeout=1"),
        )
        ended = running.ended()

    assert ended.code == 7, ended.err
    assert "ranks print, but some are behind in NCCL, and none has made progress for " in ended.err
    assert LATE in ended.err
