"""``clusterrun.Workers``: calls one after the other from one warm fork server."""

import os
import signal
import time
from importlib import import_module
from pathlib import Path

import clusterrun
import psutil
import pytest

from tests.contract.launched import Launcher
from tests.from_python.door import SECONDS_BETWEEN_JOB_AND_HOLD
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("here")


def parents() -> tuple[int, int]:
    """Return the parent of the server child, and the rank's own pid."""
    child = psutil.Process(os.getppid())
    return child.ppid(), os.getpid()


def test_calls_share_what_is_imported_and_nothing_else() -> None:
    with clusterrun.Workers(2, preload=["json"], start_method="fork") as workers:
        first, second = workers.run(parents), workers.run(parents)

    assert len({warm for warm, _ in first + second}) == 1
    assert len({pid for _, pid in first + second}) == 4
    wait_until(lambda: not psutil.pid_exists(first[0][0]), "the end of the server")


def test_a_caller_that_has_imported_little_has_a_warm_process_too(caller: Launcher) -> None:
    job = caller.script(
        """
        import os, clusterrun

        def parent_of_server_child():
            import psutil
            return psutil.Process(os.getppid()).ppid()

        with clusterrun.Workers(2) as workers:
            warm = {*workers.run(parent_of_server_child), *workers.run(parent_of_server_child)}
        print(len(warm))
        """
    )

    assert job.ended() == (0, "1\n", "")


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
    with pytest.raises(TypeError, match="takes no keep_warm"):
        clusterrun.Workers(1, keep_warm=5)


def test_a_file_that_changes_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing.py").write_text("VALUE = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def value() -> tuple[int, int]:
        return int(import_module("changing").VALUE), os.getppid()

    with clusterrun.Workers(1, preload=["changing"], start_method="fork") as workers:
        [(first, replaced)] = workers.run(value)
        (tmp_path / "changing.py").write_text("VALUE = 22\n")
        [second], [third] = workers.run(value), workers.run(value)

    # The one that has taken its place serves the next call, too.
    assert (first, second[0]) == (1, 22)
    assert second == third
    assert replaced != second[1]
    wait_until(lambda: not psutil.pid_exists(replaced), "the end of the server")


def test_the_callers_death_ends_the_server(caller: Launcher) -> None:
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
    assert any("fork_server" in " ".join(it.cmdline()) for it in job.processes())

    os.kill(job.process.pid, signal.SIGKILL)

    wait_until(lambda: not job.processes(), "the end of all processes")
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


def test_a_forked_child_of_the_caller_ends_nothing() -> None:
    with clusterrun.Workers(1, preload=["json"], start_method="fork") as workers:
        first = workers.run(parents)
        child = os.fork()
        if child == 0:
            workers.close()
            os._exit(0)
        os.waitpid(child, 0)

        assert workers.run(parents)[0][0] == first[0][0]


def test_results_that_take_long_to_read_leave_it_warm() -> None:
    class Slow:
        def __reduce__(self) -> tuple[object, tuple[float]]:
            return (time.sleep, (SECONDS_BETWEEN_JOB_AND_HOLD + 0.5,))

    with clusterrun.Workers(1, preload=["json"], start_method="fork") as workers:
        first = workers.run(parents)
        workers.run(Slow)

        assert workers.run(parents)[0][0] == first[0][0]
