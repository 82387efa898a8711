"""--max-restarts: all workers start again, in a new world, until no restart is left."""

import os
import re
import signal

import pytest
from clusterrun.policy import restarts
from free_ports import free_port

from tests.contract.changed_times import command_with
from tests.contract.launched import Launcher

FAILS_ONCE = """
    import os, sys, time
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    print(f"attempt {attempt} port", os.environ["MASTER_PORT"], flush=True)
    if attempt == "0" and os.environ["RANK"] == "1":
        sys.exit(7)
    if attempt == "0":
        time.sleep(100)
"""

WAITS_IN_THE_SECOND_ATTEMPT = """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(7)
print("ready", os.getpid(), flush=True)
time.sleep(100)
"""


def test_the_second_attempt_succeeds(clusterrun: Launcher) -> None:
    """Exit code 0. A chosen port differs, as the old one may still be in use."""
    job = clusterrun.script(FAILS_ONCE, "--max-restarts", "1", workers=2)

    ended = job.ended()

    assert ended.code == 0
    first, second = (set(job.numbers(f"attempt {attempt} port")) for attempt in (0, 1))
    assert (len(first), len(second), len(first & second)) == (1, 1, 0)
    assert re.search(r"clusterrun: rank 1 on \S+ failed: exit code 7\n", ended.err)
    assert ended.err.endswith("clusterrun: restarting all workers (restart 1 of 1)\n")


LOSES_ITS_FOLDER = """
    import os, shutil, sys
    from pathlib import Path
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        {harm}
        sys.exit(7)
    print("mode", error_file and oct(Path(error_file).parents[2].stat().st_mode)[-3:])
"""


@pytest.mark.parametrize(
    ("harm", "mode"),
    [
        ("shutil.rmtree(Path(error_file).parents[2])", "700"),
        ('shutil.rmtree(os.environ["TMPDIR"])', "None"),
    ],
    ids=["by a cleaner of temporary files", "with all of TMPDIR"],
)
def test_a_restart_after_the_scratch_folder_was_removed(
    clusterrun: Launcher, harm: str, mode: str
) -> None:
    """The launcher creates it again with mode 700; if it can't, workers have no error file."""
    (clusterrun.folder / "tmp").mkdir()
    job = clusterrun.script(
        LOSES_ITS_FOLDER.replace("{harm}", harm),
        "--max-restarts=1",
        workers=1,
        environ={"TMPDIR": str(clusterrun.folder / "tmp")},
    )

    ended = job.ended()

    assert (ended.code, job.wait_for(r"mode (\w+)")) == (0, [mode])


def test_a_given_port_is_kept(clusterrun: Launcher) -> None:
    """An address that the user sets never changes."""
    port = free_port()
    options = ("--max-restarts", "1", "--master-port", str(port))
    job = clusterrun.script(FAILS_ONCE, *options, workers=2)

    ended = job.ended()

    assert ended.code == 0
    assert {*job.numbers("attempt 0 port"), *job.numbers("attempt 1 port", 2)} == {port}


def test_restarts_are_used_up(clusterrun: Launcher) -> None:
    """Exit code and report are those of the last attempt."""
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


def test_the_next_attempt_starts_after_a_cleanup(clusterrun: Launcher) -> None:
    """Daemons and children in other sessions are gone, and the ports that they held are free."""
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


def test_a_signal_while_an_attempt_ends(clusterrun: Launcher) -> None:
    """No other attempt begins, and the exit code is the signal's."""
    os.mkfifo(clusterrun.folder / "go")
    job = clusterrun.script(
        """
        import os, signal, sys, time
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
        if os.environ["RANK"] == "1":
            open("go").close()
            sys.exit(7)
        signal.signal(signal.SIGTERM, lambda *_: print("caught", flush=True))
        print("ready", os.getpid(), flush=True)
        while True:
            time.sleep(0.1)
        """,
        "--max-restarts=1",
        "--shutdown-timeout=1",
        workers=2,
    )
    job.numbers("ready")
    (clusterrun.folder / "go").write_text("")
    job.wait_for("caught")

    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    assert "attempt 1" not in job.out


def test_a_signal_in_the_second_attempt(clusterrun: Launcher) -> None:
    """The signal ends the job, though a restart is left."""
    job = clusterrun.script(WAITS_IN_THE_SECOND_ATTEMPT, "--max-restarts=5", workers=2)
    job.numbers("ready", 2)

    job.signal(signal.SIGINT)

    assert job.ended().code == 130
    assert job.err.count("restarting") == 1


def test_the_fork_server_dies_in_the_second_attempt(clusterrun: Launcher) -> None:
    """No process could start a third attempt."""
    job = clusterrun.script(WAITS_IN_THE_SECOND_ATTEMPT, "--max-restarts=5", workers=2)
    job.numbers("ready", 2)

    os.kill(job.fork_server, signal.SIGKILL)

    assert job.ended().code == 128 + signal.SIGKILL
    assert job.err.endswith(", from the fork server: 128 + 9 for SIGKILL\n")


FAILS_AT_ONCE = """
    import os, sys, time
    if os.environ["RANK"] != "0":
        time.sleep(60)  # of two that fail at once, either may be the cause
    sys.exit("no such file, in attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"] * {differs})
"""


def test_the_same_failure_twice_at_once_ends_the_job(clusterrun: Launcher) -> None:
    """A third attempt would fail, too."""
    ended = clusterrun.script(
        FAILS_AT_ONCE.format(differs=0), "--max-restarts", "3", workers=2
    ).ended()

    assert ended.code == 1
    assert ended.err.count("restarting all workers") == 1
    assert re.search(
        r"\n  not restarted: rank 0 failed twice with the same last line within 10 s of its start"
        r" \(--no-fail-fast restarts anyway\)\nclusterrun: exit code 1, from rank 0\n$",
        ended.err,
    )


def test_other_failures_do_not(clusterrun: Launcher) -> None:
    """All restarts are used."""
    ended = clusterrun.script(
        FAILS_AT_ONCE.format(differs=1), "--max-restarts", "3", workers=1
    ).ended()

    assert ended.code == 1
    assert ended.err.count("restarting all workers") == 3
    assert "not restarted" not in ended.err


def test_quick_restarts_pause(clusterrun: Launcher) -> None:
    """A signal in a pause ends the job at once."""
    # The signal can't miss a pause of 30 s.
    clusterrun.program = command_with(clusterrun.folder, restarts, "MIN_DELAY", 30.0)
    job = clusterrun.script(FAILS_AT_ONCE.format(differs=1), "--max-restarts", "40", workers=1)
    job.wait_for(
        r"restarting in 30 s, since workers have failed within 10 s of their start 3 times"
    )

    job.signal(signal.SIGTERM)
    ended = job.ended()

    assert ended.code == 143
    assert ended.err.count("restarting all workers") == 2
    assert "clusterrun: SIGTERM: no restart; exit code 143\n" in ended.err


def test_a_final_exit_code(clusterrun: Launcher) -> None:
    """--no-restart-exit-codes; the report says why no attempt follows."""
    words = ("--max-restarts", "3", "--no-restart-exit-codes", "3,9-12")
    ended = clusterrun.script("import sys; sys.exit(10)", *words, workers=1).ended()

    assert ended.code == 10
    assert ended.err.endswith(
        "  not restarted: exit code 10 is one of --no-restart-exit-codes 3,9-12\n"
        "clusterrun: exit code 10, from rank 0\n"
    )


def test_ctrl_c_before_a_restart_leaves_the_failure_explained(clusterrun: Launcher) -> None:
    """The report says that no restart follows, and which failure needed one."""
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
            time.sleep(100)
        """,
        "--max-restarts=1",
        workers=2,
    )
    job.wait_for("caught")

    job.signal(signal.SIGINT)
    ended = job.ended()

    assert ended.code == 130
    notice, report = ended.err.partition("clusterrun: interrupted: no restart; exit code 130\n")[1:]
    assert notice
    assert f"clusterrun: rank 1 on {os.uname().nodename} failed: ValueError: boom\n" in report
    assert report.endswith("clusterrun: exit code 130: clusterrun received SIGINT\n")
