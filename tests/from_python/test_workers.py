"""``clusterrun.Workers``: calls one after the other, each with processes of its own."""

import os
import signal
from importlib import import_module
from pathlib import Path

import clusterrun
import pytest

from tests.contract.launched import Launcher

pytestmark = pytest.mark.usefixtures("here")


def pids() -> tuple[int, int]:
    """Return the process that has forked the rank, and the rank's own."""
    return os.getppid(), os.getpid()


def test_the_ranks_of_a_call_share_what_is_imported_and_calls_share_nothing() -> None:
    with clusterrun.Workers(2, preload=["json"], start_method="fork") as workers:
        first, second = workers.run(pids), workers.run(pids)

    assert [len({server for server, _ in call}) for call in (first, second)] == [1, 1]
    assert len({*first, *second}) == 4
    assert not {*first[0], *first[1]} & {*second[0], *second[1]}


def test_arguments_and_failures() -> None:
    with clusterrun.Workers(2, preload=["json"], start_method="fork") as workers:
        assert workers.run(divmod, 7, 2) == [(3, 1), (3, 1)]
        with pytest.raises(clusterrun.WorkerFailed):
            workers.run(lambda: 1 / 0)
        assert workers.run(int, "11", base=2) == [3, 3]


def test_closed_workers_run_nothing() -> None:
    workers = clusterrun.Workers(1)
    workers.close()
    workers.close()

    with pytest.raises(ValueError, match="these Workers are closed"):
        workers.run(os.getpid)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'nprocs'"):
        clusterrun.Workers(1, nprocs=3)
    with pytest.raises(TypeError, match=r"Workers\(\) takes no keep_warm any more; leave it out"):
        clusterrun.Workers(1, keep_warm=5)


def test_a_file_that_changes_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing.py").write_text("VALUE = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def value() -> int:
        return int(import_module("changing").VALUE)

    with clusterrun.Workers(1, preload=["changing"], start_method="fork") as workers:
        assert workers.run(value) == [1]
        (tmp_path / "changing.py").write_text("VALUE = 22\n")
        assert workers.run(value) == [22]


def test_nothing_runs_between_calls(caller: Launcher) -> None:
    job = caller.script(
        """
        import time, clusterrun
        workers = clusterrun.Workers(1, preload=["json"], start_method="fork")
        workers.run(print, "done")
        print("waiting", flush=True)
        time.sleep(100)
        """
    )
    job.wait_for("waiting")

    assert [process.pid for process in job.processes()] == [job.process.pid]
    job.signal(signal.SIGKILL)
    job.ended()


def test_the_callers_death_ends_a_call(caller: Launcher) -> None:
    job = caller.script(
        """
        import subprocess, time, clusterrun

        def works():
            subprocess.Popen(["sleep", "100"], start_new_session=True)
            print("works", flush=True)
            time.sleep(100)

        clusterrun.Workers(2, preload=["json"], start_method="fork").run(works)
        """
    )
    job.wait_for("works", times=2)

    job.signal(signal.SIGKILL)

    assert job.left() == []
    assert job.ended().code == -signal.SIGKILL


def test_variables_are_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAYS", "1")
    monkeypatch.setenv("GOES", "1")
    names = ("STAYS", "GOES", "COMES", "WORLD_SIZE")

    def found() -> list[str | None]:
        return [os.environ.get(name) for name in names]

    with clusterrun.Workers(1, preload=["json"], start_method="fork") as workers:
        assert workers.run(found) == [["1", "1", None, "1"]]
        monkeypatch.delenv("GOES")
        monkeypatch.setenv("COMES", "2")
        assert workers.run(found) == [["1", None, "2", "1"]]


def test_a_ranks_own_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that is a process group of one itself does not make each rank one."""

    def found() -> tuple[str, str]:
        return os.environ["RANK"], os.environ["WORLD_SIZE"]

    with clusterrun.Workers(2, preload=["json"], start_method="fork") as workers:
        workers.run(found)
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert workers.run(found) == [("0", "2"), ("1", "2")]
