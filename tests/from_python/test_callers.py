"""Unusual callers: with closed streams, another import path or non-UTF-8 names."""

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
"""It takes a second on an idle machine."""

for_launch_and_workers = pytest.mark.parametrize(
    "call", [clusterrun.Workers, lambda n: clusterrun.launch(int, nproc_per_node=n)]
)

LAUNCHER = Path(clusterrun.__file__).parents[1]


@pytest.mark.parametrize("closed", ["0, 1", "0, 1, 2"])
def test_caller_with_closed_standard_streams(caller: Launcher, closed: str) -> None:
    """New descriptors get the numbers of the closed streams."""
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


def test_caller_with_clusterrun_only_on_its_sys_path(caller: Launcher) -> None:
    """The caller's environment has clusterrun's dependencies, but not clusterrun."""
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


def test_paths_and_variables_that_are_not_utf_8(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_job_outlives_thread_that_started_it(tmp_path: Path) -> None:
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


def test_forked_child_does_not_keep_job_of_killed_caller_alive(caller: Launcher) -> None:
    """The child, for example a data loader, has copies of the caller's descriptors."""
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
            # Garbage collection of the context in the child must not end the job.
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
@for_launch_and_workers
def test_hint_in_allocation_shell_is_python(
    call: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint has the caller's program or a keyword, not clusterrun's command line."""
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
@for_launch_and_workers
def test_workers_with_different_python_version(
    call: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions are sent as bytecode, which a different version can't run."""
    monkeypatch.setattr(command, "PYTHON_VERSION", (2, 7))

    with pytest.raises(
        clusterrun.UsageError, match=r"this is Python 2\.7, but the workers have 3"
    ) as caught:
        call(2)

    assert f"python={sys.executable!r}" in caught.value.hint
