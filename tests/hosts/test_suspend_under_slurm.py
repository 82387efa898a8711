"""Suspensions under a real Slurm: the same batch script resumes the job where it was."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.launched import COMMAND, Ended
from tests.hosts.slurm import BatchJob, Slurm

pytestmark = [pytest.mark.long, pytest.mark.timeout(480)]

SECONDS_OF_A_RUN = 110
"""Slurm's shortest time limit is a minute, and its clock for limits is coarse."""

TRAIN = """
import json, os, sys, time
from pathlib import Path
from typing import NamedTuple
from clusterrun import suspend

STEPS = 4000
rank, slow_runs = int(os.environ["RANK"]), int(sys.argv[2])
state = Path(sys.argv[1]) / f"rank-{rank}.json"
step, weight = json.loads(state.read_text()) if state.exists() else (0, rank)
resumed = int(os.environ["CLUSTERRUN_RESUMED"])
begun = step
while step < STEPS:
    weight = (weight * 6364136223846793005 + step * 1442695040888963407 + rank) % (1 << 64)
    step += 1
    # Slow in all runs but the last one: the job must not end before Slurm suspends it.
    time.sleep(0.05 * (resumed < slow_runs))
    if suspend.requested(step):
        aside = state.with_suffix(".new")
        aside.write_text(json.dumps([step, weight]))
        aside.replace(state)
        print(f"rank {rank} saved at step {step}", flush=True)
        suspend.ready()
    elif step == begun + 1:
        print(f"rank {rank} begins at step {begun}, resumed {resumed} times", flush=True)
print(f"rank {rank} weight {weight}", flush=True)
"""


@pytest.fixture
def slurm(slurm_that_signals_tasks: Slurm, request: pytest.FixtureRequest) -> Iterator[Slurm]:
    """Return a Slurm of two idle nodes; its jobs end with the test."""
    yield slurm_that_signals_tasks

    request.node.add_report_section("teardown", "Slurm", slurm_that_signals_tasks.new_logs())
    slurm_that_signals_tasks.end_jobs()


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return str(path)


def batch_script(script: str, folder: Path, slow_runs: int, *options: str) -> str:
    """Return the script that is submitted once."""
    return f"""\
        #!/bin/sh
        #SBATCH -N2 --ntasks-per-node=1 -c1 --requeue --open-mode=append
        exec srun {COMMAND} {" ".join(options)} --log-dir {folder}/logs {script} {folder} {slow_runs}
        """


def weights(out: str) -> list[tuple[str, str]]:
    return sorted(re.findall(r"rank (\d) weight (\d+)", out))


def undisturbed(slurm: Slurm, script: str, folder: Path) -> list[tuple[str, str]]:
    """Return the weights of a run that is never suspended."""
    (folder / "undisturbed").mkdir()
    done = slurm.ended(slurm.sbatch(batch_script(script, folder / "undisturbed", 0)))
    assert done.code == 0, done.err
    return weights(done.out)


def was_suspended_twice(done: Ended, folder: Path) -> None:
    """Check that both ranks saved at the same step each time, and resumed there."""
    assert done.code == 0, done.err
    saved = re.findall(r"rank \d saved at step (\d+)", done.out)
    begun = re.findall(r"rank (\d) begins at step (\d+), resumed (\d)", done.out)
    first, second = sorted({int(step) for step in saved})
    assert sorted(map(int, saved)) == [first, first, second, second]
    assert {(int(step), resumed) for _, step, resumed in begun} == {
        (0, "0"),
        (first, "1"),
        (second, "2"),
    }
    logs = sorted(path.name for path in (folder / "logs/latest").iterdir())
    assert logs == ["attempt-0", "attempt-1", "attempt-2"]


def wait_for_suspension(slurm: Slurm, job: BatchJob, run: int) -> None:
    """Wait until a run has ended, and start the next one."""
    printed = slurm.follow(job)
    pattern = r"exit code 75: suspended at step \d+"
    printed.wait_for(pattern, times=run, seconds=SECONDS_OF_A_RUN)
    slurm.start_again(job)


def by_slurm(_slurm: Slurm) -> None:
    """Do nothing: Slurm sends the signal, or the time limit is near."""


def by_urgent_job(slurm: Slurm) -> None:
    """Submit a job that needs all nodes, and ends at once."""
    slurm.sbatch("#!/bin/sh\nexit 0\n", "--partition=urgent", "-N2", "--exclusive")


class Disturbance(NamedTuple):
    """What suspends a job."""

    options: tuple[str, ...]
    of_slurm: tuple[str, ...]
    """Options of sbatch."""
    begin: Callable[[Slurm], None]


DISTURBANCES = {
    "signal": Disturbance(
        ("--suspend-signal=USR1", "--requeue"), ("--time=1", "--signal=USR1@30"), by_slurm
    ),
    "time limit": Disturbance(("--suspend-before=50", "--requeue"), ("--time=1",), by_slurm),
    "preempted": Disturbance(("--requeue",), ("--partition=low",), by_urgent_job),
}


@pytest.mark.parametrize("how", DISTURBANCES)
def test_job_suspended_twice_has_same_weights(
    slurm: Slurm, tmp_path: Path, script: str, how: str
) -> None:
    """The script is submitted once."""
    expected = undisturbed(slurm, script, tmp_path)

    disturbance = DISTURBANCES[how]
    submitted = batch_script(script, tmp_path, 2, *disturbance.options)
    job = slurm.sbatch(submitted, *disturbance.of_slurm)
    for run in (1, 2):
        slurm.follow(job).wait_for(rf"begins at step \d+, resumed {run - 1}", times=2)
        disturbance.begin(slurm)
        wait_for_suspension(slurm, job, run)
    done = slurm.ended(job)

    was_suspended_twice(done, tmp_path)
    assert len(expected) == 2
    assert weights(done.out) == expected
