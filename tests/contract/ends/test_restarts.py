"""--max-restarts: all workers start again until no restart is left."""

import os
import re
import signal

import pytest

from tests.contract.launched import PROCESSES, Launcher

FAILS_ONCE = """
    import os, sys, time
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"attempt {attempt} port", os.environ["MASTER_PORT"], flush=True)
    if attempt == "0" and os.environ["RANK"] == "1":
        sys.exit(7)
    if attempt == "0":
        time.sleep(100)
"""

WAITS_IN_SECOND_ATTEMPT = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(7)
print("ready", os.getpid(), flush=True)
time.sleep(100)
"""


def test_second_attempt_succeeds(clusterrun: Launcher) -> None:
    """A chosen port differs, because the old one may still be in use."""
    job = clusterrun.script(FAILS_ONCE, "--max-restarts", "1", workers=2)

    ended = job.ended()

    assert ended.code == 0
    first, second = (set(job.numbers(f"attempt {attempt} port")) for attempt in (0, 1))
    assert (len(first), len(second), len(first & second)) == (1, 1, 0)
    assert re.search(r"clusterrun: rank 1 on \S+ failed: exit code 7\n", ended.err)
    assert ended.err.endswith("clusterrun: restarting all workers (restart 1 of 1)\n")


REMOVES_FOLDER = """
    import os, shutil, sys
    from pathlib import Path
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        {removal}
        sys.exit(7)
    print("mode", error_file and oct(Path(error_file).parents[2].stat().st_mode)[-3:])
"""


@pytest.mark.parametrize(
    ("removal", "mode"),
    [
        ("shutil.rmtree(Path(error_file).parents[2])", "700"),
        ('shutil.rmtree(os.environ["TMPDIR"])', "None"),
    ],
    ids=["by a cleaner of temporary files", "with all of TMPDIR"],
)
def test_restart_after_scratch_folder_was_removed(
    clusterrun: Launcher, removal: str, mode: str
) -> None:
    """The launcher creates it again with mode 700. If it can't, workers have no error file."""
    (clusterrun.folder / "tmp").mkdir()
    job = clusterrun.script(
        REMOVES_FOLDER.replace("{removal}", removal),
        "--max-restarts=1",
        workers=1,
        environ={"TMPDIR": str(clusterrun.folder / "tmp")},
    )

    ended = job.ended()

    assert (ended.code, job.wait_for(r"mode (\w+)")) == (0, [mode])


def test_exit_code_after_all_restarts_is_that_of_the_last_attempt(clusterrun: Launcher) -> None:
    ended = clusterrun.script(
        """
        import os, sys
        count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        print("of", os.environ["TORCHELASTIC_MAX_RESTARTS"], "attempt", count)
        sys.exit(10 + count)
        """,
        "--max-restarts=2",
        workers=1,
    ).ended()

    assert (ended.code, ended.out) == (12, "of 2 attempt 0\nof 2 attempt 1\nof 2 attempt 2\n")
    assert ended.err.count("restarting all workers") == 2
    assert ended.err.endswith("clusterrun: exit code 12, from rank 0\n")


def test_next_attempt_starts_after_cleanup(clusterrun: Launcher) -> None:
    """Daemons and children in other sessions have ended."""
    ended = clusterrun.script(
        """
        import os, socket, subprocess, sys, time
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            left = [pid for pid in open("left").read().split() if os.path.exists(f"/proc/{pid}")]
            print("left", left)
            sys.exit()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.set_inheritable(True)
        with open("left", "w") as file:
            for _ in range(3):
                child = subprocess.Popen(["sleep", "100"], start_new_session=True, close_fds=False)
                print(child.pid, file=file)
            if (daemon := os.fork()) == 0:
                os.setsid()
                time.sleep(100)
            print(daemon, file=file)
        os._exit(7)
        """,
        "--max-restarts=1",
        workers=1,
    ).ended()

    assert (ended.code, ended.out) == (0, "left []\n")


@pytest.mark.parametrize(
    ("process", "number", "code", "last_line"),
    [
        ("agent", signal.SIGINT, 130, ""),
        ("fork server", signal.SIGKILL, 137, ", from the fork server: 128 + 9 for SIGKILL\n"),
    ],
)
def test_end_of_second_attempt_is_not_followed_by_a_third(
    clusterrun: Launcher, process: str, number: int, code: int, last_line: str
) -> None:
    job = clusterrun.script(WAITS_IN_SECOND_ATTEMPT, "--max-restarts=5", workers=2)
    job.numbers("ready", 2)

    os.kill(PROCESSES[process](job.agent, 0), number)

    assert job.ended().code == code
    assert job.err.endswith(last_line)
    assert job.err.count("restarting") == 1


FAILS_AT_ONCE = """
    import os, sys, time
    if os.environ["RANK"] != "0":
        time.sleep(60)  # of two that fail at once, either may be the cause
    sys.exit("no such file")
"""


def test_same_failure_twice_at_once_ends_the_job(clusterrun: Launcher) -> None:
    ended = clusterrun.script(FAILS_AT_ONCE, "--max-restarts", "3", workers=2).ended()

    assert ended.code == 1
    assert ended.err.count("restarting all workers") == 1
    assert re.search(
        r"\n  not restarted: rank 0 failed twice with the same last line within 10 s of its start"
        r" \(--no-fail-fast restarts anyway\)\nclusterrun: exit code 1, from rank 0\n$",
        ended.err,
    )


def test_ctrl_c_before_restart_prints_report_of_the_failure(clusterrun: Launcher) -> None:
    job = clusterrun.script(
        """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: print("caught", flush=True))
        open("ready" + os.environ["RANK"], "w")
        while not (os.path.exists("ready0") and os.path.exists("ready1")):
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            raise ValueError("boom")
        while True:
            time.sleep(0.1)
        """,
        "--max-restarts=1",
        workers=2,
    )
    job.wait_for("caught")

    job.signal(signal.SIGINT)
    ended = job.ended()

    assert ended.code == 130
    notice, report = ended.err.partition("clusterrun: interrupted: no restart\n")[1:]
    assert notice
    assert f"clusterrun: rank 1 on {os.uname().nodename} failed: ValueError: boom\n" in report
    assert report.endswith("clusterrun: exit code 130: clusterrun received SIGINT\n")
