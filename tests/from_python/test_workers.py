"""``clusterrun.Workers``: ranks that stay alive between calls."""

import ctypes
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import clusterrun
import pytest
from clusterrun import JobInterrupted, UsageError, WorkerFailed
from clusterrun.clients.python.workers import SECONDS_TO_RETURN

from tests.contract.launched import Launcher, await_end

pytestmark = pytest.mark.usefixtures("here")

TIMEOUT = 20.0
"""Seconds; a fraction of a second is expected."""


def rank() -> int:
    return int(os.environ["RANK"])


def act_on_one_rank(number: int, act: Callable[[], object]) -> None:
    """Call ``act`` on one rank, while the others wait forever."""
    if rank() == number:
        act()
    else:
        time.sleep(1000)


def test_ranks_keep_state_between_calls(caller: Launcher) -> None:
    """Globals of ``__main__`` are the rank's, unless the caller has them, too."""
    job = caller.script(
        """
        import os, clusterrun
        given = 1

        def build():
            global model
            model = [int(os.environ["RANK"])]

        def train(n):
            global given
            model.append(n + given)
            given = 100
            return model, os.getpid()

        with clusterrun.Workers(2) as workers:
            workers.run(build)
            first, second = workers.run(train, 1), workers.run(train, n=2)
            print([model for model, _ in second])
            print([a == b for (_, a), (_, b) in zip(first, second)])
            workers.exec("model.append(7)\\nlen(model)")
            workers.exec("model.append(8)\\nmodel", rank=1)
            print(workers.run(train, 9)[1][0], workers.world_size)
        print(workers.world_size, "model" in globals())
        """
    )

    code, out, err = job.ended()

    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["[[0, 2, 3], [1, 2, 3]]", "[True, True]"]
    assert sorted(lines[2:4]) == ["[rank 0] 4", "[rank 1] 4"]
    assert lines[4:] == ["[rank 1] [1, 2, 3, 7, 8]", "[1, 2, 3, 7, 8, 10] 2", "0 False"]


def raises() -> object:
    raise LookupError("bad batch")


def exits() -> object:
    sys.exit(3)


@pytest.mark.parametrize(
    ("fails", "cause"), [(raises, LookupError), (exits, SystemExit), (threading.Lock, TypeError)]
)
def test_exception_on_one_rank_ends_call_on_all(
    fails: Callable[[], object], cause: type[BaseException]
) -> None:
    """The exception is raised at once, and all ranks stay alive."""

    def on_one_rank() -> object:
        if rank() != 1:
            time.sleep(1000)
        return fails()

    with clusterrun.Workers(3) as workers:
        before = workers.run(os.getpid)
        began = time.monotonic()
        with pytest.raises(
            WorkerFailed, match=rf"(?s)\Arank 1 on \S+ failed:\n.*{cause.__name__}"
        ) as caught:
            workers.run(on_one_rank)
        took = time.monotonic() - began

        assert workers.run(os.getpid) == before
    failure = caught.value
    assert took < TIMEOUT
    assert (failure.rank, failure.exit_code, failure.signal) == (1, None, None)
    assert isinstance(failure.__cause__, cause)
    assert "rank.py" not in str(failure)


def reduced(broken: int | None = None) -> float:
    """Return the sum over all ranks, while DDP's reducer holds the group; fail on one rank."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        # A notebook also keeps the model longer than its group.
        vars(clusterrun).setdefault("kept", []).append(model)
    if rank() == broken:
        # By then, the others wait in C code.
        time.sleep(2)
        raise ValueError("bad batch")
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def test_ranks_return_from_collective_after_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process groups are destroyed, and the next call makes new ones, at another port."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    # DDP imports torch._dynamo.
    preload = ["torch", "torch._dynamo"]
    with clusterrun.Workers(2, preload=preload, start_method="fork") as workers:
        assert workers.run(reduced) == [2.0, 2.0]
        for broken in (1, 0):
            with pytest.raises(WorkerFailed, match="bad batch") as caught:
                workers.run(reduced, broken)
            assert caught.value.rank == broken
            assert "process groups were destroyed" in caught.value.__notes__[0]
            assert workers.run(reduced) == [2.0, 2.0]


def test_large_output_is_shown_before_call_returns(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(lines: int) -> None:
        for _ in range(lines):
            sys.stdout.write("x" * 99 + "\n")

    with clusterrun.Workers(1) as workers:
        workers.run(prints, 20_000)
        assert len(capsys.readouterr().out) == 2_000_000
    with clusterrun.Workers(3) as workers:
        workers.run(prints, 1_000)
        assert capsys.readouterr().out.count("x\n") == 3_000


@pytest.mark.long
def test_ranks_return_from_store_and_async_collective(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They wait in torch's store before a group exists, or have an asynchronous collective."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))

    def joins_alone() -> None:
        import torch.distributed as dist

        if rank() == 1:
            time.sleep(2)
            raise ValueError("forgot something")
        dist.init_process_group("gloo")

    def begins(broken: int | None) -> float:
        import torch
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        if rank() == broken:
            raise ValueError("bad batch")
        total = torch.ones(1)
        work = dist.all_reduce(total, async_op=True)
        if broken is None:
            work.wait()
        return total.item()

    with clusterrun.Workers(2, preload=["torch"], start_method="fork") as workers:
        with pytest.raises(WorkerFailed, match="forgot something"):
            workers.run(joins_alone)
        assert workers.run(begins, None) == [2.0, 2.0]
        with pytest.raises(WorkerFailed, match="bad batch") as caught:
            workers.run(begins, 1)
        assert "process groups were destroyed" in caught.value.__notes__[0]
        assert workers.run(begins, None) == [2.0, 2.0]


def wait_holding_the_gil() -> None:
    """Wait in C code without releasing the GIL, as a careless extension may do."""
    libc = ctypes.PyDLL(None)
    mask = (ctypes.c_ulong * 16)()
    libc.sigemptyset(mask)
    libc.sigaddset(mask, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    libc.sigwait(mask, ctypes.byref(ctypes.c_int()))


def test_rank_that_does_not_return_is_killed() -> None:
    """All ranks are killed; the message names the failed rank and the one that hangs."""

    def hangs() -> None:
        if rank() == 1:
            # By then, the other rank waits.
            time.sleep(2)
            raise ValueError("bad batch")
        wait_holding_the_gil()

    workers = clusterrun.Workers(2)
    began = time.monotonic()
    with pytest.raises(WorkerFailed, match="rank 0 did not come back within 5 s") as caught:
        workers.run(hangs)

    assert time.monotonic() - began < SECONDS_TO_RETURN + TIMEOUT
    assert (caught.value.rank, "bad batch" in str(caught.value)) == (1, True)
    with pytest.raises(ValueError, match="these Workers are closed"):
        workers.run(rank)


@pytest.mark.parametrize(
    ("ends", "exit_code", "number", "message"),
    [
        (lambda: os._exit(3), 3, None, "rank 1 on .* failed: exit code 3"),
        (lambda: os.kill(os.getpid(), 9), None, 9, "rank 1 on .* was killed by SIGKILL"),
        (lambda: os._exit(0), 0, None, "rank 1 on .* exited with code 0: all ranks were ended"),
    ],
    ids=["fails", "killed", "exits"],
)
def test_rank_that_ends_raises_worker_failed(
    ends: Callable[[], object],
    exit_code: int | None,
    number: int | None,
    message: str,
    tmp_path: Path,
) -> None:
    """It may end in a call or between two calls."""
    workers = clusterrun.Workers(2)
    with pytest.raises(WorkerFailed, match=message) as caught:
        workers.run(act_on_one_rank, 1, ends)
    assert (caught.value.rank, caught.value.exit_code, caught.value.signal) == (
        1,
        exit_code,
        number,
    )
    workers.restart()
    go = tmp_path / "go"

    def end_after_call() -> int:
        def end() -> None:
            while not go.exists():
                time.sleep(0.01)
            ends()

        if rank() == 1:
            threading.Thread(target=end).start()
        return os.getpid()

    _, pid = workers.run(end_after_call)
    go.touch()
    await_end(pid)
    with pytest.raises(WorkerFailed, match=message):
        workers.run(time.sleep, 5)


def test_ctrl_c_after_send_does_not_break_protocol(caller: Launcher) -> None:
    """The frame is not sent again, and the next rank gets its frame."""
    job = caller.script(
        """
        import os, signal, time, clusterrun
        from clusterrun.clients.python import wire

        sends = wire.RankConnection.flush
        to_interrupt = []

        def sends_and_is_interrupted(connection):
            sends(connection)
            if to_interrupt:
                os.kill(os.getpid(), to_interrupt.pop())

        workers = clusterrun.Workers(2)
        pids = workers.run(os.getpid)
        wire.RankConnection.flush = sends_and_is_interrupted
        to_interrupt.append(signal.SIGINT)
        try:
            workers.run(time.sleep, 1000)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(workers.run(os.getpid) == pids, signal.getsignal(signal.SIGINT))
        workers.close()
        """
    )
    ended = job.ended()
    assert ended.code == 0, ended.err
    assert ended.out.startswith("interrupted\nTrue <built-in function default_int_handler>\n")


def test_ctrl_c_ends_call_but_not_ranks(caller: Launcher) -> None:
    """A second Ctrl-C ends the ranks, too."""
    job = caller.script(
        """
        import os, time, clusterrun

        def works():
            try:
                print("ready", flush=True)
                while True: time.sleep(0.1)
            except KeyboardInterrupt:
                print("saved", flush=True)
                raise

        def stays():
            print("stays", flush=True)
            while True:
                try:
                    time.sleep(0.1)
                except KeyboardInterrupt:
                    print("interrupted", flush=True)

        workers = clusterrun.Workers(2)
        pids = workers.run(os.getpid)
        try:
            workers.run(works)
        except KeyboardInterrupt:
            print(workers.run(os.getpid) == pids, flush=True)
        try:
            workers.run(stays)
        except KeyboardInterrupt:
            print(workers.world_size, flush=True)
        """
    )
    job.wait_for("ready", times=2)
    os.killpg(job.process.pid, signal.SIGINT)
    job.wait_for("stays", times=2)
    os.killpg(job.process.pid, signal.SIGINT)
    job.wait_for("interrupted", times=2)
    os.killpg(job.process.pid, signal.SIGINT)

    ended = job.ended()
    assert ended.code == 0
    assert ended.out.count("saved") == 2
    assert "True\n" in ended.out
    assert ended.out.endswith("\n0\n")


def test_interrupt_from_another_thread_ends_call(tmp_path: Path) -> None:
    """All ranks stay alive."""
    begun = tmp_path / "begun"
    os.mkfifo(begun)

    def waits() -> None:
        if rank() == 0:
            begun.write_text("")
        time.sleep(1000)

    with clusterrun.Workers(2) as workers:

        def interrupts() -> None:
            begun.read_text()
            workers.interrupt()

        thread = threading.Thread(target=interrupts)
        thread.start()
        with pytest.raises(JobInterrupted, match="the call was interrupted"):
            workers.run(waits)
        thread.join(TIMEOUT)
        # The interrupt does not affect the next call.
        assert workers.run(rank) == [0, 1]


def test_calls_of_several_threads_are_serialized() -> None:
    found: list[list[int]] = []
    with clusterrun.Workers(2) as workers:
        threads = [
            threading.Thread(target=lambda: found.append(workers.run(rank))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)

    assert found == [[0, 1]] * 4


def test_restarted_ranks_import_changed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing.py").write_text("VALUE = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def value() -> tuple[int, int]:
        return int(import_module("changing").VALUE), os.getpid()

    with clusterrun.Workers(1, preload=["changing"], start_method="fork") as workers:
        [(first, pid)] = workers.run(value)
        (tmp_path / "changing.py").write_text("VALUE = 22\n")
        assert workers.run(value) == [(first, pid)]
        workers.restart()
        [(later, other)] = workers.run(value)

    assert (first, later) == (1, 22)
    assert pid != other


def test_closed_workers_raise_value_error() -> None:
    workers = clusterrun.Workers(1)
    workers.close()
    workers.close()

    with pytest.raises(ValueError, match="these Workers are closed"):
        workers.run(os.getpid)


CALLS_IN_FORKED_CHILD = """
        import os, signal

        def call_in_forked_child(workers):
            child = os.fork()
            if child == 0:
                signal.alarm(10)
                try:
                    workers.run(int)
                except RuntimeError as error:
                    print(error, flush=True)
                workers.close()
                os._exit(0)
            os.waitpid(child, 0)
"""
"""The beginning of a script: a child's calls are refused, and end no rank. A child that hangs is killed."""


def test_ranks_run_exit_handlers_and_flush_on_close(caller: Launcher) -> None:
    """Their threads finish, too. A forked child of the caller can't end the ranks."""
    job = caller.script(
        CALLS_IN_FORKED_CHILD
        + """
        import atexit, sys, threading, clusterrun

        def leaves_work():
            atexit.register(print, "exit handler")
            threading.Timer(0.2, print, ["thread"]).start()
            sys.stdout.write("no end of line")

        with clusterrun.Workers(1) as workers:
            call_in_forked_child(workers)
            workers.run(leaves_work)
        """
    )

    code, out, err = job.ended()

    assert (code, err) == (0, "")
    message = "these Workers belong to the process that this one was forked from"
    assert out.splitlines() == [message, "no end of linethread", "exit handler"]


def test_output_is_shown_before_call_returns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with clusterrun.Workers(1) as workers:
        for number in range(20):
            workers.run(print, number)
            assert capsys.readouterr().out == f"{number}\n"


def test_killed_caller_ends_ranks(caller: Launcher) -> None:
    job = caller.script(
        """
        import subprocess, time, clusterrun

        def works():
            subprocess.Popen(["sleep", "100"], start_new_session=True)
            print("works", flush=True)

        workers = clusterrun.Workers(2)
        workers.run(works)
        time.sleep(100)
        """
    )
    job.wait_for("works", times=2)

    job.signal(signal.SIGKILL)

    assert job.left() == []
    assert job.ended().code == -signal.SIGKILL


def test_unclosed_workers_end_with_program(caller: Launcher) -> None:
    """They also end when they are garbage collected."""
    job = caller.script(
        """
        import atexit, clusterrun
        workers = clusterrun.Workers(1)
        workers = clusterrun.Workers(1)
        workers.run(lambda: atexit.register(print, "exit handler"))
        print("ends", flush=True)
        """
    )

    assert job.ended() == (0, "ends\nexit handler\n", "")
    assert job.left() == []


def test_variables_of_refused_options_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERRUN_HANG_TIMEOUT", "1")
    monkeypatch.setenv("CLUSTERRUN_ON_HANG", "stop")
    monkeypatch.setenv("CLUSTERRUN_MAX_RESTARTS", "3")
    monkeypatch.setenv("CLUSTERRUN_SPARES", "1")
    monkeypatch.setenv("CLUSTERRUN_REJOIN_TIMEOUT", "5")
    with clusterrun.Workers(2) as workers:
        first = workers.run(os.getpid)
        time.sleep(2.5)
        assert workers.run(os.getpid) == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nprocs": 3}, "got an unexpected keyword argument 'nprocs'"),
        ({"keep_warm": 5}, r"Workers\(\) takes no keep_warm any more; remove it"),
        (
            {"max_restarts": 1},
            r"takes no max_restarts: call restart\(\) to start failed ranks again",
        ),
        ({"hang_timeout": 60}, "takes no hang_timeout: ranks that wait for a call do nothing"),
        ({"on_hang": "stop"}, "takes no on_hang"),
        ({"rejoin_timeout": 5}, r"takes no rejoin_timeout: call restart\(\) after a node is lost"),
        ({"nnodes": 2}, "takes no nnodes: use hosts, which are reached by ssh"),
        ({"node_rank": 1}, "takes no node_rank: use hosts, which are reached by ssh"),
    ],
)
def test_options_that_workers_refuse(options: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        clusterrun.Workers(1, **options)


def test_invalid_arguments() -> None:
    with pytest.raises(UsageError, match="'0' is not a number of workers"):
        clusterrun.Workers(0)
    with clusterrun.Workers(2) as workers:
        with pytest.raises(UsageError, match="can't be pickled"):
            workers.run(threading.Lock().acquire)
        with pytest.raises(IndexError, match="there is no rank 2: there are 2 ranks"):
            workers.exec("1", rank=2)
        with pytest.raises(
            WorkerFailed, match=r"(?s)File \"<ranks \d+>\", line 2.*1 / 0.*ZeroDivision"
        ):
            workers.exec("x = 1\n1 / 0")
        assert workers.run(divmod, 7, 2) == [(3, 1), (3, 1)]


def test_cell_is_plain_python() -> None:
    """The launcher's own ``from __future__ import annotations`` does not apply to it."""
    with clusterrun.Workers(1) as workers:
        workers.exec("def f(x: int): pass\nseen = f.__annotations__['x'], (lambda: f)()")
        workers.exec("assert seen == (int, f), seen")


def test_source_lines_after_exec_on_one_rank() -> None:
    """Cells that only that rank has got are sent to the others in the next call."""
    source = "def fails():\n    raise ValueError('bad batch')\n"
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec"), cell)  # noqa: S102 - as a notebook does
    with clusterrun.Workers(2) as workers:
        workers.exec("1", rank=0)
        with pytest.raises(WorkerFailed, match=r"    raise ValueError\('bad batch'\)"):
            workers.run(act_on_one_rank, 1, cell["fails"])


def test_keyword_arguments_with_any_name() -> None:
    with clusterrun.Workers(1) as workers:
        assert workers.run(dict, fn=3, self=4) == [{"fn": 3, "self": 4}]


def test_call_of_daemon_thread_blocks_neither_forked_child_nor_end(caller: Launcher) -> None:
    job = caller.script(
        CALLS_IN_FORKED_CHILD
        + """
        import threading, time, clusterrun

        def waits():
            open("begun", "w").close()
            time.sleep(1000)

        def call():
            try:
                workers.run(waits)
            except clusterrun.JobInterrupted:
                print("interrupted", flush=True)

        workers = clusterrun.Workers(1)
        threading.Thread(target=call, daemon=True).start()
        while not os.path.exists("begun"):
            time.sleep(0.01)
        call_in_forked_child(workers)
        """
    )

    assert job.ended() == (
        0,
        "these Workers belong to the process that this one was forked from\ninterrupted\n",
        "",
    )


@pytest.mark.long
def test_slow_exit_handler_finishes(caller: Launcher) -> None:
    job = caller.script(
        """
        import atexit, time, clusterrun

        def saves_at_exit():
            atexit.register(lambda: (time.sleep(7), print("saved", flush=True)))

        with clusterrun.Workers(2) as workers:
            workers.run(saves_at_exit)
        """
    )

    code, out, err = job.ended()

    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == ["[rank 0] saved", "[rank 1] saved"]
