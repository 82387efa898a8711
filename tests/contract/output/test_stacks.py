"""The stacks of all ranks, after SIGQUIT or ``--hang-timeout``."""

import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.contract.launched import Job, Launcher, await_status

TWO_FUNCTIONS = """
    import os, signal, threading

    def waits_here():
        signal.sigwait({signal.SIGUSR1})

    def waits_there():
        signal.sigwait({signal.SIGUSR1})

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    signal.signal(signal.SIGUSR1, lambda *_: None)
    print("ready", os.getpid(), flush=True)
    if os.environ["RANK"] == "1":
        waits_there()
    else:
        waits_here()
"""

HANG_NOTICE = (
    r"clusterrun: no rank has printed or exited for 1 s: the Python stacks of all ranks follow;"
    r" the job keeps running\n"
)


def stack_in(ranks: str, function: str) -> str:
    """Return a pattern for the stack of ranks that are in this function."""
    return (
        rf"  {ranks}:\n(      File .*\n)?      File .* in {function}\n      File .* in <module>\n"
    )


def await_sleep(job: Job, ranks: int) -> None:
    """Wait until all ranks sleep in their ``sigwait``."""
    for pid in job.numbers("ready", ranks):
        await_status(pid, psutil.STATUS_SLEEPING)


def test_stacks_of_ranks_in_different_functions(clusterrun: Launcher) -> None:
    """The most common stack comes first. The log files have the stacks, too."""
    job = clusterrun.script(TWO_FUNCTIONS, "--log-dir=logs", workers=3)
    await_sleep(job, 3)

    job.signal(signal.SIGQUIT)
    job.wait_for("waits_there")
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert (
        "clusterrun: SIGQUIT: the Python stacks of 3 workers follow; the job keeps running"
        in job.err
    )
    assert re.search(
        stack_in("ranks 0, 2", "waits_here") + stack_in("rank 1", "waits_there"), job.err
    )
    assert "[rank" not in job.err
    logs = clusterrun.folder / "logs/latest/attempt-0"
    assert re.search(stack_in("rank 1", "waits_there"), (logs / "stacks.txt").read_text())
    (log,) = logs.glob("*/rank-1.err")
    assert "most recent call first" in log.read_text()


def test_stack_has_all_threads(clusterrun: Launcher) -> None:
    """Each has a heading. Other lines of a rank are printed as usual."""
    job = clusterrun.script(
        """
        import signal, sys, threading, time
        def in_a_thread():
            while not over.wait(0.01):
                print("still here", file=sys.stderr, flush=True)
        over = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: over.set())
        threading.Thread(target=in_a_thread).start()
        print("ready", flush=True)
        while not over.is_set(): time.sleep(0.1)
        """,
        workers=2,
    )
    job.wait_for("still here", 4)

    job.signal(signal.SIGQUIT)
    job.wait_for(r"\n    Current thread .*\n      File")
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert re.search(
        r"\n  rank.*:\n    Thread (.* )?\(most recent call first\):\n      File", job.err
    )
    own = {line.partition("] ")[2] for line in job.err.splitlines() if line.startswith("[rank")}
    # faulthandler writes a line in pieces, and the thread may print between two of them. And under -u
    # a text and its line end are two writes: on a busy machine the second one comes late.
    mixed = any(line != "still here" and "still here" in line for line in own)
    halves = any(line.startswith("  File ") and ", line " not in line for line in own)
    is_torn = mixed or halves
    assert is_torn or own - {""} == {"still here"}


def test_programs_other_than_python_have_no_stack(clusterrun: Launcher) -> None:
    catches = 'test $RANK = 1 || trap "echo caught" QUIT'
    program = f"{catches}; echo ready; while :; do sleep 0.1; done"
    job = clusterrun.command("--no-python", "sh", "-c", program, workers=3)
    job.wait_for("ready", 3)

    job.signal(signal.SIGQUIT)
    job.wait_for(
        r"  ranks 0, 2: no Python stack within 2 s: stopped, in native code, or not Python\n"
    )
    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    assert "\n  rank 1: no handler for SIGQUIT" in job.err


@pytest.mark.parametrize("options", [(), ("--redirects=2", "--log-dir=logs")])
def test_stack_of_a_single_worker_is_printed_once(
    clusterrun: Launcher, options: tuple[str, ...]
) -> None:
    """The worker prints it, or the relay if the worker's output is a file."""
    job = clusterrun.script(TWO_FUNCTIONS, *options, workers=1)
    await_sleep(job, 1)

    job.signal(signal.SIGQUIT)
    job.wait_for("<module>")
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert job.err.count("in waits_here") == 1


def test_hang_is_reported_once(clusterrun: Launcher) -> None:
    """The stacks do not count as output. Files of torch's flight recorder are named."""
    records = clusterrun.folder / "trace_"
    environ = {"TORCH_FR_DUMP_TEMP_FILE": str(records)}
    job = clusterrun.script(TWO_FUNCTIONS, "--hang-timeout=1", workers=2, environ=environ)
    await_sleep(job, 2)
    Path(f"{records}1").touch()

    job.wait_for(HANG_NOTICE)
    job.wait_for("waits_there")
    time.sleep(1.5)
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert job.err.count("no rank has printed") == 1
    assert f"torch's flight recorder (torchfrtrace reads it): {records}1\n" in job.err


HANGS_ONCE = """
    import os, signal

    def waits_here():
        signal.sigwait({signal.SIGUSR1})

    def waits_there():
        signal.sigwait({signal.SIGUSR1})

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] != "3":
        waits_there() if os.environ["RANK"] == "1" else waits_here()
"""

HUNG = r"""the job hung: no rank printed or exited for 1 s \(--hang-timeout\)
  the others waited for ranks 1, 3
  2 ranks are in sigwait at script0.py:5; rank 1 is in sigwait at script0.py:8
"""


def test_hang_ends_the_job(clusterrun: Launcher) -> None:
    """One straggler is in another function, one has exited."""
    ended = clusterrun.script(HANGS_ONCE, "--hang-timeout=1", "--on-hang=stop", workers=4).ended()

    assert ended.code == 7
    assert re.search(
        f"clusterrun: error: {HUNG}clusterrun: exit code 7: the job hung\n$", ended.err
    )
    assert "  rank 3: exited with 0\n" in ended.err


def test_hang_restarts_the_job(clusterrun: Launcher) -> None:
    options = ("--hang-timeout=1", "--on-hang=restart", "--max-restarts=1")
    ended = clusterrun.script(HANGS_ONCE, *options, workers=4).ended()

    assert ended.code == 0
    restarted = r"clusterrun: restarting all workers \(restart 1 of 1\)\n"
    assert re.search(f"clusterrun: {HUNG}{restarted}", ended.err)


THREAD_PRINTS = """
    import os, threading, time
    import torch.distributed as dist

    def prints():
        while True:
            print("alive", flush=True)
            time.sleep(0.2)

    dist.init_process_group("gloo")
    dist.barrier()
    threading.Thread(target=prints, daemon=True).start()
    if os.environ["RANK"] == "1":
        threading.Event().wait()
    dist.barrier()
"""

HUNG_WHILE_PRINTING = r"""ranks printed, but no main thread ran for [\d.]+ s \(--hang-timeout\)
  the others waited for rank 1
"""


def test_output_of_a_thread_does_not_hide_hung_main_threads(clusterrun: Launcher) -> None:
    """The main threads wait inside torch."""
    options = ("--hang-timeout=3", "--on-hang=stop")
    ended = clusterrun.script(THREAD_PRINTS, *options, workers=3).ended(90)

    assert ended.code == 7
    moves = r"^clusterrun: ranks print, but no main thread has run for [\d.]+ s: the Python stacks"
    assert re.search(moves, ended.err, re.MULTILINE), ended.err
    assert "clusterrun: the other ranks wait for rank 1\n" in ended.err
    assert re.search(f"the job hung: {HUNG_WHILE_PRINTING}", ended.err), ended.err


WORKS_IN_A_THREAD = """
    import threading, time

    def works():
        for step in range(30):
            print("step", step, flush=True)
            time.sleep(0.3)

    thread = threading.Thread(target=works)
    thread.start()
    thread.join()
"""


SHELL_LOOP = "for step in $(seq 14); do echo $step; sleep 0.6; done"


@pytest.mark.parametrize("program", ["thread", "shell"])
def test_output_of_another_thread_or_of_a_child_prevents_a_hang(
    clusterrun: Launcher, program: str
) -> None:
    """The main threads wait, but not inside torch."""
    options = ("--hang-timeout=4", "--on-hang=stop")
    if program == "thread":
        job = clusterrun.script(WORKS_IN_A_THREAD, *options, workers=2)
    else:
        job = clusterrun.command(*options, "--no-python", "sh", "-c", SHELL_LOOP, workers=2)

    assert (job.ended().code, job.err) == (0, "")


def test_slow_import_before_the_script_is_not_a_hang(clusterrun: Launcher) -> None:
    (clusterrun.folder / "slow.py").write_text("import time; time.sleep(2.5)")
    options = ("--hang-timeout=1", "--preload=slow", "--start-method=fork")
    job = clusterrun.script(
        TWO_FUNCTIONS, *options, workers=2, environ={"PYTHONPATH": str(clusterrun.folder)}
    )

    job.wait_for("waits_there")
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert job.err.count("no rank has printed") == 1
    assert "no handler" not in job.err


@pytest.mark.long
def test_output_resets_the_timeout(clusterrun: Launcher) -> None:
    """The output of one rank is enough, even an incomplete line."""
    job = clusterrun.script(
        """
        import os, sys, time
        if os.environ["RANK"] == "0":
            for number in range(5):
                print(number, end=" ", flush=True)
                time.sleep(0.3)
            print("dots done", flush=True)
            time.sleep(1.2)
            print("more", flush=True)
            time.sleep(1.2)
        """,
        "--hang-timeout=1",
        workers=2,
    )

    job.wait_for("dots done")
    assert "no rank has printed" not in job.err
    assert job.ended().code == 0

    assert job.err.count("no rank has printed or exited for 1 s") == 2


def test_time_while_a_job_is_stopped_does_not_count(clusterrun: Launcher) -> None:
    job = clusterrun.script(
        """
        import time
        while True:
            print("step", flush=True)
            time.sleep(0.1)
        """,
        "--hang-timeout=1",
        workers=2,
    )
    job.wait_for("step", 2)

    job.signal(signal.SIGTSTP)
    await_status(job.agent, psutil.STATUS_STOPPED)
    steps = job.out.count("step")
    time.sleep(1.5)
    job.signal(signal.SIGCONT)
    job.wait_for("step", steps + 20)
    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    assert "no rank has printed" not in job.err
