"""Where all ranks are: asked for by SIGQUIT, or found out by ``--hang-timeout``."""

import re
import signal
import time

import psutil

from tests.contract.launched import Job, Launcher, await_status

APART = """
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

NOTHING_MOVES = (
    r"clusterrun: no rank has printed or exited for 1 s: the Python stacks of all ranks follow;"
    r" nothing is ended\n"
)


def place(ranks: str, function: str) -> str:
    """Return a pattern for the stack of ranks that are in this function."""
    return (
        rf"  {ranks}:\n(      File .*\n)?      File .* in {function}\n      File .* in <module>\n"
    )


def all_wait(job: Job, ranks: int) -> None:
    """Wait until all ranks do nothing else."""
    for pid in job.numbers("ready", ranks):
        await_status(pid, psutil.STATUS_SLEEPING)


def test_ranks_in_different_places_are_told_apart(clusterrun: Launcher) -> None:
    """The commonest place first; nothing of it stands among what the ranks print."""
    job = clusterrun.script(APART, "--log-dir=logs", workers=3)
    all_wait(job, 3)

    job.signal(signal.SIGQUIT)
    job.wait_for("waits_there")
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert re.search(place("ranks 0, 2", "waits_here") + place("rank 1", "waits_there"), job.err)
    assert "[rank" not in job.err
    logs = clusterrun.folder / "logs/latest/attempt-0"
    assert re.search(place("rank 1", "waits_there"), (logs / "stacks.txt").read_text())
    (log,) = logs.glob("*/rank-1.err")
    assert "most recent call first" in log.read_text()


def test_threads_belong_to_a_stack(clusterrun: Launcher) -> None:
    """Each with its heading; what a rank prints meanwhile is shown as its own."""
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
        over.wait()
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
    own = [line for line in job.err.splitlines() if line.startswith("[rank")]
    assert {line.partition("] ")[2] for line in own} == {"still here"}


def test_no_program_of_python(clusterrun: Launcher) -> None:
    """One line says which ranks have no handler, at once; a shell that has one tells no stack."""
    listens = 'test $RANK = 1 || trap "echo heard" QUIT'
    program = f"{listens}; echo ready; while :; do sleep 0.1; done"
    job = clusterrun.command("--no-python", "sh", "-c", program, workers=3)
    job.wait_for("ready", 3)

    job.signal(signal.SIGQUIT)
    job.wait_for(r"  ranks 0, 2: no Python stack within 2 s\n")
    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    assert "\n  rank 1: no handler for SIGQUIT" in job.err


def test_one_worker_s_stack_is_shown_once(clusterrun: Launcher) -> None:
    """It has the output to itself."""
    job = clusterrun.script(APART)
    all_wait(job, 1)

    job.signal(signal.SIGQUIT)
    job.wait_for("<module>")
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert job.err.count("in waits_here") == 1


def test_a_worker_that_is_not_shown_tells_its_stack_all_the_same(clusterrun: Launcher) -> None:
    """What it prints goes to its file; who asks where it is sees it on the screen."""
    job = clusterrun.script(APART, "--redirects=2", "--log-dir=logs", workers=1)
    all_wait(job, 1)

    job.signal(signal.SIGQUIT)
    job.wait_for("waits_here")
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert re.search(place("rank 0", "waits_here"), job.err)


def test_a_hang_is_found(clusterrun: Launcher) -> None:
    """Once, however long it lasts; the stacks that it brings about are no sign of life."""
    job = clusterrun.script(APART, "--hang-timeout=1", workers=2)
    all_wait(job, 2)

    job.wait_for(NOTHING_MOVES)
    job.wait_for("waits_there")
    time.sleep(1.5)
    job.signal(signal.SIGUSR1)

    assert job.ended().code == 0
    assert job.err.count("no rank has printed") == 1


def test_output_is_a_sign_of_life(clusterrun: Launcher) -> None:
    """One rank is enough, and so is an unfinished line; after the last one it is a hang again."""
    job = clusterrun.script(
        """
        import os, sys, time
        if os.environ["RANK"] == "0":
            for number in range(8):
                print(number, end=" ", flush=True)
                time.sleep(0.3)
            print("dots done", flush=True)
            time.sleep(1.5)
            print("and on", flush=True)
            time.sleep(1.5)
        """,
        "--hang-timeout=1",
        workers=2,
    )

    job.wait_for("dots done")
    assert "no rank has printed" not in job.err
    assert job.ended().code == 0

    assert job.err.count("no rank has printed or exited for 1 s") == 2


def test_time_that_a_job_is_stopped_does_not_count(clusterrun: Launcher) -> None:
    """Whoever has stopped it knows that nothing moves."""
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
