"""``clusterrun.launch``: results and failures of ranks, and the state of the caller."""

import asyncio
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clusterrun
import psutil
import pytest
from clusterrun import JobInterrupted, RemoteTraceback, UsageError, WorkerFailed
from clusterrun.policy.node import SECONDS_OF_DUPLICATES
from free_ports import free_port

pytestmark = pytest.mark.usefixtures("here")

FACTOR = 3

AGENT_MODULE = "clusterrun.cli.entry"
"""In the command line of the agent."""


class NeedsTwoArguments(Exception):
    """Can be pickled but not unpickled, because pickle passes only the message."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def rank() -> int:
    return int(os.environ["RANK"])


def test_launch_returns_result_of_each_rank() -> None:
    def times(number: int, *, plus: int) -> tuple[int, int]:
        return rank(), number * FACTOR + plus

    found = clusterrun.launch(times, (2,), {"plus": 1}, nproc_per_node=3)

    assert found == [(0, 7), (1, 7), (2, 7)]


def test_rank_has_worker_variables_and_callers_import_path() -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "FLAVOUR"]
    sys.path.append("/callers/own")
    try:
        found = clusterrun.launch(
            lambda: ([os.environ.get(name) for name in names], sys.path[-1], sys.argv),
            nproc_per_node=2,
            env={"FLAVOUR": "sour"},
        )
    finally:
        sys.path.remove("/callers/own")

    assert [values[:3] for values, _, _ in found] == [["0", "0", "2"], ["1", "1", "2"]]
    assert {values[-1] for values, _, _ in found} == {"sour"}
    assert found[0][1:] == ("/callers/own", sys.argv)


def test_functions_and_classes_of_main_round_trip(caller: Any) -> None:
    job = caller.script(
        """
        from dataclasses import dataclass
        import clusterrun

        @dataclass
        class Point:
            x: int

        def double(point):
            return Point(point.x * 2)

        # No guard: the ranks do not import this file.
        found = clusterrun.launch(double, (Point(4),), nproc_per_node=2)
        assert found == [Point(8), Point(8)], found
        assert all(type(each) is Point for each in found)
        print("equal")
        """
    )

    assert job.ended() == (0, "equal\n", "")


@pytest.mark.long
def test_large_results_and_tensors() -> None:
    def large() -> tuple[bytes, Any]:
        import torch

        return bytes(10_000_000), torch.arange(1000) * rank()

    found = clusterrun.launch(large, nproc_per_node=2)

    assert [len(data) for data, _ in found] == [10_000_000] * 2
    assert [int(tensor.sum()) for _, tensor in found] == [0, 499_500]


def test_remote_exception_is_the_cause(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        if rank() == 1:
            raise ValueError("bad batch")
        signal.pause()

    with pytest.raises(WorkerFailed) as caught:
        clusterrun.launch(fails, nproc_per_node=2)

    failure = caught.value
    assert (failure.rank, failure.exit_code, failure.signal) == (1, 1, None)
    assert failure.host == os.uname().nodename
    assert isinstance(failure.__cause__, ValueError)
    assert str(failure.__cause__) == "bad batch"
    assert "rank 1 on" in str(failure)
    assert "in fails" in str(failure)
    assert "rank.py" not in str(failure)
    assert "rank.py" not in capfd.readouterr().err
    # As pytest-xdist and process pools do.
    copy = pickle.loads(pickle.dumps(failure))  # noqa: S301 - our own
    assert str(copy) == str(failure)


def test_exception_that_cannot_be_unpickled_becomes_traceback() -> None:
    def fails() -> None:
        raise NeedsTwoArguments("this", "that")

    with pytest.raises(WorkerFailed) as caught:
        clusterrun.launch(fails, nproc_per_node=1)

    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "NeedsTwoArguments: this and that" in str(caught.value.__cause__)


def test_exception_that_cannot_be_pickled_becomes_traceback() -> None:
    def fails() -> None:
        raise ValueError(threading.Lock())

    with pytest.raises(WorkerFailed) as caught:
        clusterrun.launch(fails, nproc_per_node=1)

    assert "ValueError: <unlocked" in str(caught.value.__cause__)


def test_result_that_cannot_be_pickled_is_a_failure() -> None:
    with pytest.raises(WorkerFailed) as caught:
        clusterrun.launch(threading.Lock, nproc_per_node=1)

    assert "what the function returned (lock) can't be pickled" in str(caught.value.__cause__)


@pytest.mark.parametrize("leave", [os._exit, sys.exit])
def test_rank_that_exits_with_error(leave: Callable[[int], object]) -> None:
    with pytest.raises(WorkerFailed) as caught:
        clusterrun.launch(leave, (3,), nproc_per_node=1)

    assert caught.value.exit_code == 3


def test_rank_that_exits_with_0_returns_none() -> None:
    assert clusterrun.launch(lambda: sys.exit(0), nproc_per_node=2) == [None, None]


def test_rank_that_ends_without_result_is_a_failure() -> None:
    with pytest.raises(WorkerFailed, match="rank 0 exited with code 0 inside the function"):
        clusterrun.launch(lambda: os._exit(0), nproc_per_node=1)


def test_killed_rank() -> None:
    with pytest.raises(WorkerFailed, match="SIGSEGV") as caught:
        clusterrun.launch(lambda: os.kill(os.getpid(), signal.SIGSEGV), nproc_per_node=2)

    assert (caught.value.exit_code, caught.value.signal) == (None, signal.SIGSEGV)


def test_rank_that_forks_and_prints_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    def forks() -> int:
        os.write(1, b"\xff\xfe binary\n")
        child = os.fork()
        if child == 0:
            os._exit(7)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert clusterrun.launch(forks, nproc_per_node=1) == [7]
    assert "binary" in capsys.readouterr().out


def test_launch_waits_for_child_processes_of_ranks(tmp_path: Path) -> None:
    """A child that ends soon is waited for; a server is killed."""
    uploaded = tmp_path / "uploaded"

    def uploads() -> int:
        subprocess.Popen(["sh", "-c", f"sleep 1.5; echo all > {uploaded}"])
        return 7

    def serves() -> int:
        server = subprocess.Popen(["sleep", "100"], start_new_session=True)
        return server.pid

    assert clusterrun.launch(uploads, nproc_per_node=1) == [7]
    assert uploaded.read_text() == "all\n"
    [server] = clusterrun.launch(serves, nproc_per_node=1, shutdown_timeout=0.5)
    assert not psutil.pid_exists(server)


def test_exit_of_forked_rank_runs_handlers_and_flushes(caller: Any, tmp_path: Path) -> None:
    """Buffers of C, temporary folders and running threads are handled, too."""
    code, out, err = caller.script(
        f"""
        import atexit, clusterrun, ctypes, os, sys, tempfile, threading

        def leaves_work_to_the_end():
            global kept
            rank = os.environ["RANK"]
            atexit.register(sys.stdout.write, "exit handler\\n")
            libc = ctypes.CDLL(None)
            libc.fopen.restype = ctypes.c_void_p
            file = libc.fopen(f"{tmp_path}/from-c-{{rank}}".encode(), b"w")
            libc.fputs(b"from C", ctypes.c_void_p(file))
            kept = tempfile.TemporaryDirectory(dir={str(tmp_path)!r}, prefix="kept-")
            if rank == "1":
                threading.Timer(0.2, sys.stdout.write, ["thread\\n"]).start()

        clusterrun.launch(
            leaves_work_to_the_end, nproc_per_node=2, start_method="fork", preload="numpy"
        )
        """
    ).ended()
    assert (code, err) == (0, "")
    handlers = [f"[rank {rank}] exit handler" for rank in range(2)]
    assert sorted(out.splitlines()) == sorted([*handlers, "[rank 1] thread"])
    assert [path.read_text() for path in tmp_path.glob("from-c-*")] == ["from C", "from C"]
    assert list(tmp_path.glob("kept-*")) == []


def test_launch_returns_results_of_last_attempt() -> None:
    def succeeds_later() -> str:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if attempt == "0":
            raise RuntimeError("not yet")
        return attempt

    assert clusterrun.launch(succeeds_later, nproc_per_node=2, max_restarts=1) == ["1", "1"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_goes_to_callers_streams(capsys: pytest.CaptureFixture[str], stream: str) -> None:
    clusterrun.launch(lambda: print("hello", file=getattr(sys, stream)), nproc_per_node=2)

    lines = getattr(capsys.readouterr(), stream[3:]).splitlines()
    assert sorted(lines) == ["[rank 0] hello", "[rank 1] hello"]


def test_uncaptured_output_is_in_order(caller: Any) -> None:
    job = caller.script(
        """
        import clusterrun
        print("before")
        clusterrun.launch(lambda: print("during"), nproc_per_node=1)
        print("after")
        """
    )

    assert job.ended() == (0, "before\nduring\nafter\n", "")


def test_launch_does_not_change_caller() -> None:
    def state() -> object:
        handlers = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return handlers, mask, threading.enumerate(), dict(os.environ), descriptors, Path.cwd()

    clusterrun.launch(rank, nproc_per_node=1)
    before = state()
    clusterrun.launch(rank, nproc_per_node=1)
    with pytest.raises(WorkerFailed):
        clusterrun.launch(lambda: 1 / 0, nproc_per_node=1)

    assert state() == before


def test_launch_from_threads_and_asyncio() -> None:
    async def both() -> list[list[int]]:
        calls = [asyncio.to_thread(clusterrun.launch, rank, nproc_per_node=2) for _ in range(2)]
        return list(await asyncio.gather(*calls))

    assert asyncio.run(both()) == [[0, 1], [0, 1]]


def test_launch_inside_a_worker() -> None:
    def outer() -> list[int]:
        import clusterrun

        return clusterrun.launch(rank, nproc_per_node=2)

    assert clusterrun.launch(outer, nproc_per_node=2) == [[0, 1], [0, 1]]


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_ctrl_c_stops_job_gracefully(caller: Any, send: Callable[[int, int], None]) -> None:
    """A terminal sends SIGINT to the process group, a notebook only to the kernel."""
    job = caller.script(
        """
        import signal, time, clusterrun

        def handles():
            try:
                print("ready", flush=True)
                while True:
                    time.sleep(0.1)
            except KeyboardInterrupt:
                print("saved", flush=True)
                raise

        try:
            clusterrun.launch(handles, nproc_per_node=2)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    job.wait_for("ready", times=2)

    send(job.process.pid, signal.SIGINT)

    ended = job.ended()
    assert (ended.code, ended.out.count("saved")) == (0, 2)
    assert ended.out.endswith("interrupted\n")
    assert ended.err.count("Traceback") <= 1


def test_ctrl_c_stops_job_of_another_thread(caller: Any) -> None:
    job = caller.script(
        """
        import asyncio, time, clusterrun

        def works():
            print("ready", flush=True)
            while True:
                time.sleep(0.1)

        asyncio.run(asyncio.to_thread(clusterrun.launch, works, nproc_per_node=1))
        """
    )
    job.wait_for("ready")

    os.killpg(job.process.pid, signal.SIGINT)

    assert "KeyboardInterrupt" in job.ended().err


def test_cancelled_asyncio_task_stops_job(caller: Any) -> None:
    """A signal to the program alone cancels the task, and the loop waits for the thread."""
    job = caller.script(
        """
        import asyncio, time, clusterrun

        def works(_):
            try:
                print("ready", flush=True)
                while True:
                    time.sleep(0.1)
            except KeyboardInterrupt:
                print("saved", flush=True)
                raise

        async def main():
            context = clusterrun.spawn(works, nprocs=2, join=False)
            try:
                await asyncio.to_thread(context.join)
            finally:
                context.interrupt()

        asyncio.run(main())
        """
    )
    job.wait_for("ready", times=2)

    job.signal(signal.SIGINT)

    ended = job.ended()
    assert ended.out.count("saved") == 2
    assert "KeyboardInterrupt" in ended.err


def test_second_ctrl_c_kills_workers(caller: Any) -> None:
    job = caller.script(
        """
        import signal, time, clusterrun

        def ignores():
            signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("ready", flush=True)
            while True:
                time.sleep(0.1)

        clusterrun.launch(ignores, nproc_per_node=1)
        """
    )
    job.wait_for("ready")
    job.signal(signal.SIGINT)
    job.wait_for("no")

    time.sleep(SECONDS_OF_DUPLICATES)
    job.signal(signal.SIGINT)

    assert "KeyboardInterrupt" in job.ended().err


def test_signal_to_agent_raises_job_interrupted() -> None:
    with pytest.raises(JobInterrupted, match="SIGTERM") as caught:
        clusterrun.launch(signal_agent, nproc_per_node=1)

    assert caught.value.signal == signal.SIGTERM


def signal_agent() -> None:
    agent = next(it for it in psutil.Process().parents() if AGENT_MODULE in " ".join(it.cmdline()))
    agent.terminate()
    signal.pause()


def test_suspended_call_raises_job_interrupted() -> None:
    """The message says at which step all ranks have saved."""
    with pytest.raises(JobInterrupted, match="exit code 75: suspended at step "):
        clusterrun.launch(request_suspension, nproc_per_node=2)


def request_suspension() -> None:
    from clusterrun import suspend

    for step in itertools.count():
        if suspend.requested(step):
            suspend.ready()
        if step == 50 and rank() == 0:
            next(
                it for it in psutil.Process().parents() if AGENT_MODULE in " ".join(it.cmdline())
            ).terminate()
        time.sleep(0.01)


def test_killed_caller_ends_job(caller: Any) -> None:
    job = caller.script(
        """
        import subprocess, time, clusterrun

        def works():
            subprocess.Popen(["sleep", "100"], start_new_session=True)
            print("ready", flush=True)
            time.sleep(100)

        clusterrun.launch(works, nproc_per_node=2)
        """
    )
    job.wait_for("ready", times=2)

    os.kill(job.process.pid, signal.SIGKILL)

    assert job.ended().code == -signal.SIGKILL
    assert job.left() == []


def test_launch_on_two_nodes() -> None:
    def world() -> tuple[str, str]:
        return os.environ["RANK"], os.environ["WORLD_SIZE"]

    port = free_port()

    def node(number: int) -> list[tuple[str, str]]:
        return clusterrun.launch(
            world,
            nproc_per_node=2,
            nnodes=2,
            node_rank=number,
            master_addr="127.0.0.1",
            master_port=port,
        )

    async def both() -> list[list[tuple[str, str]]]:
        return list(await asyncio.gather(*(asyncio.to_thread(node, each) for each in (0, 1))))

    assert asyncio.run(both()) == [[("0", "4"), ("1", "4")], [("2", "4"), ("3", "4")]]


def test_impossible_option_value_names_keyword() -> None:
    with pytest.raises(UsageError, match="--nproc-per-node: '0' is not a number of workers"):
        clusterrun.launch(rank, nproc_per_node=0)


def test_non_function_is_refused() -> None:
    async def later() -> None:
        pass

    with pytest.raises(TypeError, match="5 is not a function"):
        clusterrun.launch(5, nproc_per_node=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is an async function"):
        clusterrun.launch(later, nproc_per_node=1)


@pytest.mark.parametrize("args", [3, "train"])
def test_args_that_are_not_a_tuple_are_refused(args: object) -> None:
    """A str would be passed character by character."""
    with pytest.raises(TypeError, match=r"args is .*: give a tuple"):
        clusterrun.launch(rank, args, nproc_per_node=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_of_main_in_child_of_multiprocessing(caller: Any, method: str) -> None:
    """There, the module is called __mp_main__."""
    job = caller.script(
        f"""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from dataclasses import dataclass
        import clusterrun

        @dataclass
        class Point:
            x: int

        def double(point):
            return Point(point.x * 2)

        def trial(x):
            found = clusterrun.launch(double, (Point(x),), nproc_per_node=2)
            return [type(each) is Point for each in found], [each.x for each in found]

        if __name__ == "__main__":
            with ProcessPoolExecutor(1, multiprocessing.get_context({method!r})) as pool:
                print(pool.submit(trial, 4).result())
        """,
        # The path of multiprocessing's socket has at most 107 bytes.
        environ={"TMPDIR": "/tmp"},
    )

    assert job.ended() == (0, "([True, True], [8, 8])\n", "")
