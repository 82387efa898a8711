"""Callers that are unlike a plain script: closed streams, an import path or names of their own."""

import os
import shutil
import signal
import sys
import threading
import venv
from pathlib import Path

import clusterrun
import msgspec
import pytest
from clusterrun import WorkerFailed

from tests.contract.launched import Launcher
from tests.from_python.door import (
    SpawnContext,
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


def test_names_that_are_no_utf_8(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "\udcff"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("ODD", "\udcff")

    assert clusterrun.launch(lambda: os.environ["ODD"], nproc_per_node=1) == ["\udcff"]
    with pytest.raises(WorkerFailed, match="\udcff/logs"):
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


def test_the_callers_death_ends_a_job_whose_thread_has_ended(caller: Launcher) -> None:
    os.mkfifo(caller.folder / "begun")
    job = caller.script(
        """
        import threading, time, clusterrun

        def works(rank):
            if rank == 0:
                open("begun", "w").close()
            time.sleep(100)

        contexts = []

        def start():
            contexts.append(clusterrun.spawn(works, nprocs=2, join=False))
            open("begun").close()

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        assert not contexts[0].join(timeout=0.5)
        print("waiting", flush=True)
        time.sleep(100)
        """
    )
    job.wait_for("waiting")

    os.kill(job.process.pid, signal.SIGKILL)

    assert job.ended().code == -signal.SIGKILL
    assert job.left() == []
