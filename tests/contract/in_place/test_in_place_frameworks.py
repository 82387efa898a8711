"""Frameworks, an ordinary training script and a debugger work in each worker."""

import re

import pytest

from tests.contract.debugger import first_session, with_endpoints
from tests.contract.in_place.programs_in_place import PROGRAMS, START_METHODS
from tests.contract.launched import Launcher
from tests.hosts.test_frameworks import (
    ON_CPUS,
    TRAIN,
    accelerate_scripts,
    expect_success,
    module_of,
    ranks_of,
    trained,
)

each_method = pytest.mark.parametrize("method", START_METHODS)


@pytest.mark.long
@each_method
@accelerate_scripts
def test_accelerate_passes_its_own_tests(clusterrun: Launcher, name: str, method: str) -> None:
    """With two ranks."""
    words = ("--start-method", method, *module_of(name))

    expect_success(clusterrun.command(*words, workers=2, environ=ON_CPUS))


@pytest.mark.long
@each_method
def test_lightning_trains(clusterrun: Launcher, method: str) -> None:
    """With the two ranks of the job."""
    job = clusterrun.script(TRAIN, "--start-method", method, workers=2)

    assert trained(job) == ranks_of(2)


@pytest.mark.long
@each_method
def test_frameworks_read_rank_at_import(clusterrun: Launcher, method: str) -> None:
    """Lightning and torchmetrics read RANK while they are imported: each rank must find its own.

    Otherwise all ranks would write checkpoints.
    """
    ended = clusterrun.script(
        """
        import os
        import torch
        from lightning.fabric.utilities import rank_zero_only as of_fabric
        from lightning.pytorch.utilities import rank_zero_only as of_lightning
        from torchmetrics.utilities.prints import rank_zero_only as of_torchmetrics

        ranks = [of_fabric.rank, of_lightning.rank, of_torchmetrics.rank]
        print("ranks", os.environ["RANK"], *ranks, torch.__name__, flush=True)
        """,
        f"--start-method={method}",
        workers=4,
    ).ended(100)

    assert ended.code == 0, ended.err
    printed = re.findall(r"^\[rank (\d)\] ranks (.*)$", ended.out, re.MULTILINE)
    assert sorted(printed) == [
        (str(rank), f"{rank} {rank} {rank} {rank} torch") for rank in range(4)
    ]


@pytest.mark.long
@each_method
def test_hand_written_ddp_learns_digits(clusterrun: Launcher, method: str) -> None:
    """Hooks, a coalesced all_reduce, a new group in each step; all ranks end with the same model."""
    ended = clusterrun.command(
        "--start-method", method, str(PROGRAMS / "own_ddp.py"), workers=2
    ).ended(100)

    accuracies = re.findall(r"^\[rank \d\] accuracy ([\d.]+) same True$", ended.out, re.MULTILINE)
    assert ended.code == 0, ended.err
    assert len(accuracies) == 2
    assert float(accuracies[0]) >= 90


@pytest.mark.long
@each_method
def test_breakpoint_with_debugpy_module(clusterrun: Launcher, method: str) -> None:
    """As ``clusterrun -m debugpy --listen PORT --wait-for-client SCRIPT``."""
    script = PROGRAMS / "debugged/is_watched.py"
    place = script.read_text().splitlines().index("        total += step") + 1
    words = ("-m", "debugpy", "--listen", "127.0.0.1:0", "--wait-for-client", str(script))
    environ = with_endpoints(clusterrun.folder)
    job = clusterrun.command("--start-method", method, *words, workers=1, environ=environ)

    with first_session(clusterrun.folder) as debugger:
        debugger.attach({script: [place]})
        stops = []
        for _ in range(4):
            thread, function, line = debugger.stopped()
            stops.append((function, line, debugger.value(thread, "(step, total)")))
            debugger.resume(thread)
        ended = job.ended()

    assert stops == [("train", place, f"({n}, {sum(range(n))})") for n in range(4)]
    assert (ended.code, ended.out) == (0, 'total 6 0 "__main__"\n'), ended.err


@pytest.mark.long
@each_method
def test_breakpoint_with_debugpy_listen(clusterrun: Launcher, method: str) -> None:
    """At ``debugpy.breakpoint``, and at a line set by the debugger."""
    script = PROGRAMS / "debugged/listens.py"
    lines = script.read_text().splitlines()
    place = lines.index("        total += step") + 1
    words = ("--start-method", method, str(script))
    job = clusterrun.command(*words, workers=1, environ=with_endpoints(clusterrun.folder))

    with first_session(clusterrun.folder) as debugger:
        debugger.attach({script: [place]})
        thread, function, line = debugger.stopped()
        assert (function, lines[line - 1].split("(")[0]) == ("<module>", "print")
        debugger.resume(thread)
        for step in range(4):
            thread, function, line = debugger.stopped()
            assert (function, line, debugger.value(thread, "step")) == ("train", place, str(step))
            debugger.resume(thread)
        ended = job.ended()

    assert (ended.code, ended.out) == (0, "total 6 0\n"), ended.err
