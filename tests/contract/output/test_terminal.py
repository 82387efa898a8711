"""A job at a terminal behaves like any other command: debugger, Ctrl-C, Ctrl-Z and the prompt."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.contract.launched import COMMAND, PROCESSES, await_status, node_options
from tests.contract.shell import PROMPT, Shell
from tests.contract.worker_scripts import WAITS

pytestmark = pytest.mark.needs("bash")


def start(shell: Shell, workers: int) -> list[int]:
    """Run a script that waits; return the process ids of its workers."""
    shell.run(WAITS, "--nproc-per-node", str(workers))
    return [int(shell.expect(r"ready (\d+)").group(1)) for _ in range(workers)]


def test_single_worker_has_the_terminal(shell: Shell) -> None:
    shell.run(
        """
        import os
        print("terminals", [os.isatty(number) for number in (0, 1, 2)])
        print("group", os.tcgetpgrp(0) == os.getpgrp(), "tty", os.ttyname(os.open("/dev/tty", 0)))
        print("answer", input("question? "))
        """
    )
    shell.expect(r"terminals \[True, True, True\]")
    shell.expect(r"group True tty /dev/tty")
    shell.expect(r"question\? ")

    shell.type("forty-two")

    shell.expect("answer forty-two")
    assert shell.exit_code() == 0


def test_single_worker_of_each_node_has_the_terminal_of_its_node(
    shell: Shell, tmp_path: Path
) -> None:
    other = Shell(tmp_path)
    try:
        for options, terminal in zip(node_options(), (shell, other), strict=True):
            script = "import os; print(os.environ['RANK'], input('? '))"
            terminal.run(script, "--nproc-per-node=1", *options)
        for node_rank, terminal in enumerate((shell, other)):
            terminal.expect(r"\? ")
            terminal.type(f"typed at {node_rank}")

        shell.expect("0 typed at 0")
        other.expect("1 typed at 1")
        assert (shell.exit_code(), other.exit_code()) == (0, 0)
    finally:
        other.close()


def test_several_workers_print_in_colour(shell: Shell) -> None:
    """Their output is a pipe; a variable says that the launcher's is a terminal."""
    words = "--nproc-per-node 2 --no-python sh -c 'echo colours $FORCE_COLOR; test ! -t 1'"

    shell.type(f"TERM=xterm {COMMAND} {words}")

    for _ in range(2):
        shell.expect(r"rank [01]\]\x1b\[0m colours 1\r")
    assert shell.exit_code() == 0


def test_pdb_in_a_single_worker(shell: Shell) -> None:
    """Ctrl-Z, fg and Ctrl-C work, too."""
    shell.run(
        """
        import os, time
        print("pid", os.getpid())
        x = 41
        breakpoint()
        x += 1
        print("x is", x)
        while x == 42:
            time.sleep(0.01)
        print("x is", x)
        """,
        "--nproc-per-node=1",
    )
    worker = int(shell.expect(r"pid (\d+)").group(1))
    shell.expect(r"\(Pdb\) ")
    shell.type("p x")
    shell.expect(r"41\r\n\(Pdb\) ")

    shell.stop_job()
    shell.bring_back(worker)
    shell.type("p x")
    shell.expect(r"41\r\n\(Pdb\) ")

    shell.type("c")
    shell.expect("x is 42")
    shell.press("Ctrl-C")
    shell.expect("Program interrupted")
    shell.expect(r"\(Pdb\) ")
    shell.type("x = 43")
    shell.type("c")

    shell.expect("x is 43")
    assert shell.exit_code() == 0


def test_any_worker_can_read_the_terminal(shell: Shell) -> None:
    """In torch.distributed.breakpoint, pdb reads it like this."""
    shell.run(
        """
        import os
        if os.environ["RANK"] == "1":
            with open("/dev/stdin") as typed:
                print("? ", end="")
                print("read", typed.readline())
        """,
        *("--nproc-per-node", "2"),
    )
    shell.expect(r"\? ")

    shell.type("forty-two")

    shell.expect("read forty-two")
    assert shell.exit_code() == 0


@pytest.mark.long
def test_torch_breakpoint_in_any_rank(shell: Shell) -> None:
    shell.run(
        """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        secret = 41 + dist.get_rank()
        dist.breakpoint(1)
        print("rank", dist.get_rank(), "continues")
        dist.destroy_process_group()
        """,
        *("--nproc-per-node", "2"),
    )
    shell.expect(r"\(Pdb\) ")
    shell.type("up")
    shell.expect(r"\(Pdb\) ")

    shell.type("p secret")
    shell.expect("42")
    shell.type("c")

    for _ in range(2):
        shell.expect(r"rank \d continues")
    assert shell.exit_code() == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_z_fg_and_ctrl_c(shell: Shell, workers: int) -> None:
    """The whole job stops and continues. The shell has the terminal in between."""
    pids = start(shell, workers)
    launcher = shell.launcher

    for _ in range(2):
        shell.stop_job()
        for pid in pids:
            await_status(pid, psutil.STATUS_STOPPED)
        shell.bring_back(pids[0] if workers == 1 else launcher)
        for pid in pids:
            await_status(pid, psutil.STATUS_SLEEPING)
    shell.press("Ctrl-C")

    one_worker, two_workers = "KeyboardInterrupt", "clusterrun: interrupted: stopping 2 workers"
    shell.expect(one_worker if workers == 1 else two_workers)
    assert shell.exit_code() == 130


def test_fg_continues_the_worker_once(shell: Shell) -> None:
    """A second SIGCONT would undo a Ctrl-Z that came meanwhile."""
    shell.run(
        """
        import os, signal, time
        signal.signal(signal.SIGCONT, lambda number, frame: os.write(1, b"continued\\n"))
        print("ready", os.getpid(), flush=True)
        while True: time.sleep(0.1)
        """,
        *("--nproc-per-node", "1"),
    )
    worker = int(shell.expect(r"ready (\d+)").group(1))
    shell.stop_job()

    shell.bring_back(worker)

    shell.expect("continued")
    shell.press("Ctrl-C")
    assert "continued" not in shell.expect("KeyboardInterrupt").string
    assert shell.exit_code() == 130


def test_ctrl_z_in_a_pipeline(shell: Shell) -> None:
    """Only the worker gets it, but the rest of the shell's job must stop, too."""
    shell.run(WAITS, "--nproc-per-node", "1", after="| cat")
    worker = int(shell.expect(r"ready (\d+)").group(1))

    shell.stop_job()
    shell.bring_back(worker)
    shell.press("Ctrl-C")

    shell.expect("KeyboardInterrupt")
    shell.exit_code()
    assert shell.left() == []


@pytest.mark.parametrize("workers", [1, 2])
def test_bg(shell: Shell, workers: int) -> None:
    """The job continues, and the shell has the terminal."""
    pids = start(shell, workers)
    launcher = shell.launcher

    shell.stop_job()
    shell.type("bg")
    for pid in pids:
        await_status(pid, psutil.STATUS_SLEEPING)
    assert shell.exit_code() == 0
    shell.bring_back(launcher)
    # The launcher has the terminal now, and gets the signal.
    shell.stop_job()
    for pid in pids:
        await_status(pid, psutil.STATUS_STOPPED)
    shell.bring_back(pids[0] if workers == 1 else launcher)
    shell.press("Ctrl-C")

    assert shell.exit_code() == 130


def test_restart_in_the_background(shell: Shell) -> None:
    """The new worker does not take the terminal."""
    shell.run(
        """
        import os, time
        print("ready", os.getpid(), flush=True)
        while not os.path.exists("continue"):
            time.sleep(0.01)
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        # One write: the shell may print its prompt between two.
        print(f"attempt {attempt} {os.tcgetpgrp(0) == os.getpgrp()}", flush=True)
        raise SystemExit(attempt == "0")
        """,
        *("--nproc-per-node", "1", "--max-restarts", "1"),
    )
    worker = int(shell.expect(r"ready (\d+)").group(1))
    shell.stop_job()
    shell.type("bg")
    await_status(worker, psutil.STATUS_SLEEPING)

    shell.type("touch 'continue'")

    shell.expect("attempt 0 False")
    shell.expect("attempt 1 False")
    shell.type("")
    assert shell.exit_code() == 0


def test_job_started_in_the_background(shell: Shell) -> None:
    """It does not take the terminal until fg."""
    shell.run(WAITS, "--nproc-per-node", "1", after="&")
    shell.expect(PROMPT)
    shell.expect("ready")
    shell.type("")
    assert shell.exit_code() == 0

    shell.bring_back(shell.launcher)
    shell.press("Ctrl-C")

    assert shell.exit_code() == 130


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("process", "number"),
    [("agent", signal.SIGTERM), *((process, signal.SIGKILL) for process in PROCESSES)],
)
def test_shell_gets_the_terminal_back_after_signal(
    shell: Shell, process: str, number: int, workers: int
) -> None:
    pids = start(shell, workers)

    os.kill(PROCESSES[process](shell.launcher, pids[0]), number)

    assert shell.exit_code() == 128 + number
    shell.await_foreground(shell.pid)
    assert shell.left() == []


@pytest.mark.parametrize("script", ["", "raise SystemExit(7)"])
def test_shell_gets_the_terminal_back_at_the_end(shell: Shell, script: str) -> None:
    shell.run(script, "--nproc-per-node", "1")

    assert shell.exit_code() == (7 if script else 0)
    shell.await_foreground(shell.pid)


def test_hang_timeout_has_no_effect_on_the_terminal(shell: Shell) -> None:
    shell.run("import time; time.sleep(1); print('done')", "--hang-timeout", "0.3")

    shell.expect("--hang-timeout: the worker prints to the terminal itself")
    assert "no rank has printed" not in shell.expect("done").string
    assert shell.exit_code() == 0
