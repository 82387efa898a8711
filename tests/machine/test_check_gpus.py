"""The script that checks real GPUs runs without any."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import check_gpus
import pytest

from tests.machine.door import CpuSet, Machine, inspect
from tests.real_machines import CAPTURES, tree_at

ONE_GPU = CAPTURES / "one_h200.json"

SCRIPT = Path(__file__).parents[2] / "scripts/check_gpus.py"


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="takes minutes where there are some")
def test_without_a_gpu_it_says_what_it_could_not_check(tmp_path: Path) -> None:
    """It runs in any folder, and exits with 0."""
    done = subprocess.run(
        [sys.executable, SCRIPT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert len(lines) >= 4
    assert all(line.endswith("there is no NVIDIA GPU here") for line in lines)


def with_one_gpu() -> Machine:
    """Return a machine with one GPU."""
    return inspect(tree_at(ONE_GPU), {}, None, "captured")


def test_a_python_whose_workers_cannot_be_forked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No training is tried, and none has failed."""
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    checks = check_gpus.Checks()

    check_gpus.check_training(checks, with_one_gpu())

    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(
        "not checked   forked workers with CUDA and NCCL: OMP_PROC_BIND is set: libraries bind"
    )
    assert checks.failed == 0


def test_the_trainings_on_a_machine_with_one_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each can be started there: the plans are those of a captured machine, the results made up."""
    run = check_gpus.run_python

    def plan(
        arguments: Sequence[str], variables: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        words = [*arguments[:2], "--dry-run", "--json", f"--machine-root={ONE_GPU}", *arguments[2:]]
        planned = run(words, variables)
        if planned.returncode == 0 and "--dry-run" not in arguments:
            write_results(Path(arguments[-1]), json.loads(planned.stdout)["workers"])
        return planned

    monkeypatch.setattr(check_gpus, "run_python", plan)
    monkeypatch.setattr(check_gpus, "why_no_worker_is_forked", str)
    checks = check_gpus.Checks()

    check_gpus.check_training(checks, with_one_gpu())

    printed = capsys.readouterr().out
    assert checks.failed == 0, printed
    assert printed.count("exit code: 0\n") == 3


def write_results(folder: Path, workers: Sequence[Mapping[str, str | None]]) -> None:
    """Write what each worker of the training reports."""
    allowed = CpuSet(os.sched_getaffinity(0))
    for rank, worker in enumerate(workers):
        cpus = CpuSet.parse(worker["cpus"]) if worker["cpus"] else allowed
        results = {
            "began_without_cuda": True,
            "learnt": True,
            "agree": True,
            "shown": 1,
            "uuid": with_one_gpu().visible[0].uuid,
            "cpus": sorted(cpus),
        }
        (folder / str(rank)).write_text(json.dumps(results))
