"""Callers that are unlike a plain script: closed streams, an import path or names of their own."""

import os
import shutil
import signal
import sys
import threading
import time
import venv
from collections.abc import Callable
from pathlib import Path

import clusterrun
import msgspec
import pytest
from clusterrun import WorkerFailed
from clusterrun.clients.python import command
from clusterrun.clients.python.launch import SpawnContext

from tests.contract.launched import Launcher
from tests.waiting import wait_until

SECONDS_TO_END = 5.0
"""A second, on a machine that is not busy."""

of_both = pytest.mark.parametrize(
    "call", [clusterrun.Workers, lambda n: clusterrun.launch(int, nproc_per_node=n)]
)

LAUNCHER = Path(clusterrun.__file__).parents[1]


@pytest.mark.parametrize("closed", ["0, 1", "0, 1, 2"])
def test_a_caller_whose_standard_streams_are_closed(caller: Launcher, closed: str) -> None:
    """What it opens gets their numbers."""
    job = caller.script(
        f"""
        import os, clusterrun
        for number in ({closed}):
            os.close(number)
        found = clusterrun.launch(lambda: print("lost") or 7, nproc_per_node=2)
        with open("found", "w") as file:
            print(found, file=file)
        os._exit(0)
        """
    )

    assert job.ended().out == ""
    assert (caller.folder / "found").read_text() == "[7, 7]\n"


def test_a_caller_that_has_clusterrun_by_an_entry_of_its_own(caller: Launcher) -> None:
    """The environment of the caller's interpreter has what clusterrun needs, and not clusterrun."""
    environment = caller.folder / "environment"
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(f"{Path(msgspec.__file__).parents[1]}\n")
    script = caller.folder / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(LAUNCHER)!r}); import clusterrun\n"
        "print(clusterrun.launch(lambda: 7, nproc_per_node=2))\n"
    )
    caller.program = str(environment / "bin" / Path(sys.executable).name)

    assert caller.command(str(script)).ended() == (0, "[7, 7]\n", "")


def test_names_that_are_not_utf_8(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "\udcff"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("ODD", "\udcff")

    assert clusterrun.launch(lambda: os.environ["ODD"], nproc_per_node=1) == ["\udcff"]
    with pytest.raises(WorkerFailed, match=r"\\udcff/logs"):
        clusterrun.launch(lambda: 1 / 0, nproc_per_node=1, log_dir=folder / "logs")
    assert list(folder.iterdir()) == [folder / "logs"]
    shutil.rmtree(folder)


@pytest.mark.usefixtures("here")
def test_a_job_outlives_the_thread_that_has_started_it(tmp_path: Path) -> None:
    contexts: list[SpawnContext | None] = []
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    os.mkfifo(begun)
    os.mkfifo(gate)

    def waits(_: int) -> str:
        begun.write_text("")
        return gate.read_text()

    def start() -> None:
        contexts.append(clusterrun.spawn(waits, nprocs=1, join=False))
        begun.read_text()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    [context] = contexts
    assert context is not None

    assert context.join(timeout=0.5) is False
    gate.write_text("")
    assert context.join() is True


def test_a_caller_killed_while_its_data_loader_lives(caller: Launcher) -> None:
    """The forked child has a copy of all that the caller had open: it must not keep the job alive."""
    job = caller.script(
        """
        import os, subprocess, time, clusterrun

        def works(_):
            subprocess.Popen(["sleep", "100"], start_new_session=True)
            print("ready", flush=True)
            time.sleep(100)

        context = clusterrun.spawn(works, nprocs=2, join=False)
        child = os.fork()
        if child == 0:
            # As a loader of an epoch that is over: it forgets the job, and ends nothing of it.
            del context
            print("loader", os.getpid(), flush=True)
            time.sleep(100)
            os._exit(0)
        context.join()
        """
    )
    [loader] = job.numbers("loader")
    job.wait_for("ready", times=2)

    os.kill(job.process.pid, signal.SIGKILL)

    began = time.monotonic()
    wait_until(lambda: [it.pid for it in job.processes()] == [loader], "the end of the job")
    assert time.monotonic() - began < SECONDS_TO_END
    os.kill(loader, signal.SIGKILL)
    assert job.ended().code == -signal.SIGKILL
    assert job.left() == []


@pytest.mark.usefixtures("here")
@of_both
def test_in_the_shell_of_an_allocation(
    call: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What to type is the caller's program, or an argument: not our own command line."""
    for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        monkeypatch.setenv(name, "n[1-2]")
    for name, value in (("JOB_ID", "1"), ("JOB_NUM_NODES", "2"), ("NNODES", "2")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(sys, "argv", ["my sweep.py", "1"])

    with pytest.raises(clusterrun.UsageError, match="but this shell runs on") as caught:
        call(2)

    assert caught.value.hint == (
        "put srun before clusterrun:\n  srun python 'my sweep.py'\n"
        "or run the job on this host:\n  cluster='none'"
    )


@pytest.mark.usefixtures("here")
@of_both
def test_workers_of_another_python(
    call: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions are sent as code, which another version does not run."""
    monkeypatch.setattr(command, "OUR_PYTHON", (2, 7))

    with pytest.raises(
        clusterrun.UsageError, match=r"this is Python 2\.7, and the workers have 3"
    ) as caught:
        call(2)

    assert f"python={sys.executable!r}" in caught.value.hint
