"""The effect of each signal to the launcher on the launcher and on its workers."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from clusterrun.policy.node import SECONDS_OF_DUPLICATES

from tests.contract.launched import Launcher, await_end, await_status
from tests.contract.worker_scripts import WAITS
from tests.waiting import SECONDS_TO_ACT, wait_until

SECONDS_AT_ONCE = 20.0
"""Less than the grace period, and long enough for a busy machine."""

ENDS_WELL = """
    import os, signal, sys, time
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    print("ready", os.getpid(), flush=True)
    while True:
        time.sleep(0.1)
"""

KEEPS_RUNNING = """
    import os, signal, time
    signal.signal(signal.SIGTERM, lambda *_: print("caught", flush=True))
    signal.signal(signal.SIGINT, lambda *_: print("caught", flush=True))
    print("ready", os.getpid(), flush=True)
    while True:
        time.sleep(0.1)
"""


def await_handler(pid: int, number: int) -> None:
    def is_caught() -> int:
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1

    wait_until(is_caught, f"a handler of pid {pid} for signal {number}")


@pytest.mark.parametrize("script", [WAITS, ENDS_WELL], ids=["default", "exit 0"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_job(clusterrun: Launcher, number: signal.Signals, script: str) -> None:
    """The exit code is the signal's, even if the workers exit with 0."""
    job = clusterrun.script(script, workers=2)
    job.numbers("ready", 2)

    started = time.monotonic()
    job.signal(number)
    ended = job.ended()

    assert ended.code == 128 + number
    assert time.monotonic() - started < SECONDS_AT_ONCE
    assert f"exit code {128 + number}" in ended.err
    assert ended.err.count("Traceback") <= (number == signal.SIGINT)
    assert job.left(0) == []


BLOCKS = (
    "import os, signal, sys;"
    "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{}, signal.SIGCHLD, signal.SIGUSR1]);"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


@pytest.mark.parametrize("options", [(), ("--exec",)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_inherited_block_of_signal_has_no_effect(
    clusterrun: Launcher, number: signal.Signals, options: tuple[str, ...]
) -> None:
    """Workers find only the other signals blocked."""
    script = """
        import os, signal, time
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        print(*sorted(number.name for number in mask), flush=True)
        print("ready", os.getpid(), flush=True)
        while True: time.sleep(0.1)
    """
    around = (sys.executable, "-c", BLOCKS.format(number.name))
    job = clusterrun.script(script, *options, workers=1, around=around)
    job.wait_for("ready")

    job.signal(number)
    ended = job.ended(SECONDS_AT_ONCE)

    assert ended.code in {128 + number, -number}, ended
    assert ended.out.startswith("SIGCHLD SIGUSR1\n")


def test_sigterm_ends_launcher_that_can_not_print_its_help(
    clusterrun: Launcher,
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, b"x" * select.PIPE_BUF):
            pass
    os.set_blocking(writer, True)
    with subprocess.Popen([clusterrun.program, "--help"], stdout=writer, stderr=writer) as process:
        await_handler(process.pid, signal.SIGTERM)

        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()

    os.close(reader)
    os.close(writer)
    assert process.returncode == 143


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_signal_of_worker_to_its_parent_ends_the_job(clusterrun: Launcher, method: str) -> None:
    """Under torchrun the parent is the agent."""
    ended = clusterrun.script(
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("saved"))
        print("ready", os.getpid(), flush=True)
        if os.environ["RANK"] == "1":
            os.kill(os.getppid(), signal.SIGTERM)
        while True:
            time.sleep(0.1)
        """,
        *("--start-method", method),
        workers=2,
    ).ended()

    assert ended.code == 143
    assert "clusterrun: SIGTERM to the workers' parent process: stopping 2 workers (" in ended.err


def test_ctrl_c_on_eight_ranks_prints_one_line_and_one_traceback(clusterrun: Launcher) -> None:
    job = clusterrun.script(WAITS, workers=8)
    job.numbers("ready", 8)

    job.signal(signal.SIGINT)
    # A warning about few CPUs may come before.
    _, interrupted, printed = job.ended().err.rpartition("clusterrun: interrupted")
    first, *lines = (interrupted + printed).splitlines()

    assert first == (
        "clusterrun: interrupted: stopping 8 workers (grace 25 s, a second Ctrl-C kills at once);"
        " exit code 130"
    )
    assert sum(line.endswith("KeyboardInterrupt") for line in lines) == 1
    same = [line for line in lines if "the same traceback as rank " in line]
    assert len(lines) - len(same) < 8
    assert 1 <= len(same) <= 7


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, "interrupted before any worker was started; exit code 130"),
        (signal.SIGTERM, "received SIGTERM before any worker was started; exit code 143"),
    ],
)
def test_signal_while_waiting_for_nodes_prints_one_line(
    clusterrun: Launcher, number: signal.Signals, line: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as node_zero:
        address = ("--master-addr=127.0.0.1", f"--master-port={node_zero.getsockname()[1]}")
        job = clusterrun.command("--nnodes=2", "--node-rank=1", *address, "--no-python", "true")
        node_zero.settimeout(SECONDS_TO_ACT)
        with node_zero.accept()[0]:
            job.signal(number)
            ended = job.ended()

    assert (ended.code, ended.err) == (128 + number, f"clusterrun: {line}\n")


def test_second_ctrl_c_kills_at_once(clusterrun: Launcher) -> None:
    """Two signals at the same time count as one."""
    job = clusterrun.script(KEEPS_RUNNING, workers=2)
    job.numbers("ready", 2)
    job.signal(signal.SIGINT)
    job.signal(signal.SIGINT)
    job.wait_for("caught", 2)

    time.sleep(SECONDS_OF_DUPLICATES)
    started = time.monotonic()
    job.signal(signal.SIGINT)
    ended = job.ended()

    assert ended.code == 130
    assert time.monotonic() - started < SECONDS_AT_ONCE
    assert "ranks 0-1 needed SIGKILL" in ended.err


def test_workers_that_ignore_sigterm_are_killed_after_shutdown_timeout(
    clusterrun: Launcher,
) -> None:
    job = clusterrun.script(KEEPS_RUNNING, "--shutdown-timeout", "1", workers=2)
    job.numbers("ready", 2)

    job.signal(signal.SIGTERM)
    started = time.monotonic()
    ended = job.ended()

    assert ended.code == 143
    assert 0.9 < time.monotonic() - started < SECONDS_AT_ONCE
    assert "clusterrun: 2 workers did not exit within 1 s: sending SIGKILL\n" in ended.err


def test_signal_that_nohup_ignores_has_no_effect(clusterrun: Launcher) -> None:
    job = clusterrun.script(WAITS, workers=2, around=("nohup",))
    workers = job.numbers("ready", 2)

    job.signal(signal.SIGHUP)
    for pid in workers:
        os.kill(pid, signal.SIGHUP)
    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    assert "SIGHUP" not in job.err
    assert "rank" not in job.err


def test_background_job_of_a_shell_ignores_sigint(clusterrun: Launcher) -> None:
    """A script's ``&`` sets SIGINT to be ignored. SIGQUIT prints stacks."""
    around = ("sh", "-c", '"$0" "$@" & echo agent $!; wait $!')
    job = clusterrun.script(WAITS, workers=2, around=around)
    workers = job.numbers("ready", 2)
    (agent,) = job.numbers("agent")

    for pid in (agent, *workers):
        os.kill(pid, signal.SIGINT)
    os.kill(agent, signal.SIGQUIT)
    job.wait_for("ranks? 0-1:\n.*, line 4 in <module>")
    os.kill(agent, signal.SIGTERM)

    assert job.ended().code == 143
    assert "interrupted" not in job.err
    assert "failed" not in job.err


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGRTMIN + 1])
def test_signal_is_forwarded_to_workers_with_a_handler(clusterrun: Launcher, number: int) -> None:
    """A worker that it would kill does not get it, and a line names that worker."""
    job = clusterrun.script(
        """
        import os, signal, sys, time
        number = int(sys.argv[1])
        if os.environ["RANK"] == "0":
            signal.signal(number, lambda *_: print("caught", os.getpid(), flush=True))
        if os.environ["RANK"] == "1":
            signal.signal(number, signal.SIG_IGN)
        print("ready", os.getpid(), flush=True)
        while True:
            time.sleep(0.1)
        """,
        workers=3,
        args=[str(int(number))],
    )
    workers = job.numbers("ready", 3)

    job.signal(number)

    assert job.numbers("caught")[0] in workers
    job.wait_for(r"clusterrun: \S+( \d+)? was not passed on to local rank 2: it has no handler")
    assert [pid for pid in workers if not psutil.pid_exists(pid)] == []


def test_sigtstp_stops_and_sigcont_continues_all_processes(clusterrun: Launcher) -> None:
    """A SIGTERM to a stopped job ends it when it is continued."""
    job = clusterrun.script(WAITS, workers=2)
    processes = (job.agent, *job.numbers("ready", 2))

    for _ in range(2):
        job.signal(signal.SIGTSTP)
        for pid in processes:
            await_status(pid, psutil.STATUS_STOPPED)
        job.signal(signal.SIGCONT)
        for pid in processes:
            await_status(pid, psutil.STATUS_SLEEPING)
    job.signal(signal.SIGTSTP)
    for pid in processes:
        await_status(pid, psutil.STATUS_STOPPED)

    job.signal(signal.SIGTERM)
    job.signal(signal.SIGCONT)

    assert job.ended().code == 143


def test_sigterm_is_not_sent_to_children_of_a_python_worker(clusterrun: Launcher) -> None:
    """Its data loaders keep running until it has saved its state."""
    job = clusterrun.script(
        """
        import os, signal, subprocess, time
        pipe = subprocess.PIPE
        child = subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, text=True)

        def save(*_):
            print("saving", *child.communicate("a batch"), flush=True)
            os._exit(0)

        signal.signal(signal.SIGTERM, save)
        print("ready", os.getpid(), flush=True)
        while True:
            time.sleep(0.1)
        """
    )
    job.numbers("ready")

    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    assert "saving a batch None\n" in job.out


def test_sigterm_is_sent_to_process_group_of_a_program(clusterrun: Launcher) -> None:
    """A shell runs its trap only when its child has ended."""
    script = "trap 'echo saved; exit 0' TERM; sh -c 'echo ready; exec sleep 100'"
    job = clusterrun.command("--no-python", "sh", "-c", script)
    job.wait_for("ready")

    started = time.monotonic()
    job.signal(signal.SIGTERM)

    assert job.ended() == (143, "ready\nsaved\n", job.err)
    assert time.monotonic() - started < SECONDS_AT_ONCE


def test_training_loop_saves_after_sigterm(clusterrun: Launcher) -> None:
    """It trains for 30 more batches, with the same data loaders."""
    job = clusterrun.script(
        """
        import os, signal
        from torch.utils.data import DataLoader

        stop_after = None

        def stop_soon(*_):
            global stop_after
            stop_after = done + 30

        signal.signal(signal.SIGTERM, stop_soon)
        loader = DataLoader(range(10**8), batch_size=4, num_workers=2)
        for done, batch in enumerate(loader):
            if done == 2:
                print("training", os.getpid(), flush=True)
            if done == stop_after:
                open("checkpoint" + os.environ["RANK"], "w").write("saved")
                break
        """,
        workers=2,
    )
    job.numbers("training", 2)

    job.signal(signal.SIGTERM)
    ended = job.ended()

    assert ended.code == 143
    assert sorted(file.name for file in clusterrun.folder.glob("checkpoint*")) == [
        "checkpoint0",
        "checkpoint1",
    ]
    assert "Traceback" not in ended.err


def test_signal_to_agent_is_the_cause_if_workers_get_it_too(clusterrun: Launcher) -> None:
    """A scheduler may signal all processes at the same time."""
    job = clusterrun.script(WAITS, workers=2)
    workers = job.numbers("ready", 2)

    # The signal and the workers' ends arrive together when the agent continues.
    for pid, number in ((job.agent, signal.SIGSTOP), *((pid, signal.SIGTERM) for pid in workers)):
        os.kill(pid, number)
    for pid in workers:
        await_end(pid)
    job.signal(signal.SIGTERM)
    job.signal(signal.SIGCONT)

    assert job.ended().code == 143
    assert job.err.endswith("clusterrun: exit code 143: clusterrun received SIGTERM\n")


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(it, marks=() if it in {20, 40} else pytest.mark.long)
        for it in range(0, 100, 10)
    ],
)
def test_sigterm_while_starting_ends_the_job(clusterrun: Launcher, step: int) -> None:
    job = clusterrun.script(WAITS, workers=2)

    time.sleep(step / 200)
    job.signal(signal.SIGTERM)

    assert job.ended().code in (143, -signal.SIGTERM)
    assert job.left(0) == []


@pytest.mark.long
@pytest.mark.parametrize("helper", ["fork server", "relay"])
@pytest.mark.parametrize("is_signalled", [False, True])
def test_stopped_helper_ends_the_job(
    clusterrun: Launcher, helper: str, *, is_signalled: bool
) -> None:
    """It ends as if the helper had been killed. A signal to the agent before that is the cause."""
    job = clusterrun.script(WAITS, "--shutdown-timeout", "1", workers=2)
    job.numbers("ready", 2)
    os.kill(job.relay if helper == "relay" else job.fork_server, signal.SIGSTOP)

    if is_signalled:
        job.signal(signal.SIGTERM)

    ended = job.ended()
    assert ended.code == (143 if is_signalled else 137)
    assert is_signalled or f"the {helper} has not answered for 5 s: it is stopped" in ended.err
    assert job.left() == []


def test_signal_is_forwarded_to_children_of_a_program(clusterrun: Launcher) -> None:
    """With --no-python, a shell has no handler, but its child has one."""
    handler = "import signal; print('ready', flush=True); signal.sigwait({signal.SIGUSR1})"
    mask = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})"
    catching = "signal.signal(signal.SIGUSR1, lambda *_: None)"
    text = f'{mask}; {catching}; {handler}; print("caught")'.replace("'", '"')
    job = clusterrun.command("--no-python", "sh", "-c", f"{sys.executable} -uc '{text}'; exit 5")
    job.wait_for("ready")

    job.signal(signal.SIGUSR1)

    assert job.ended().code == 5
    assert "caught" in job.out
