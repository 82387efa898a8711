"""``on_failure``: services whose workers restart alone, or whose failures are ignored."""

import re
import signal

import psutil
import pytest

from tests.contract.launched import Job, Launcher, read_events
from tests.contract.services.job_files import WAITS, client, start_job
from tests.waiting import wait_until

TWO_ENGINES = """
    script: train.py
    max_restarts: 1
    services:
      server:
        command: [python, server.py, engine]
        nproc_per_node: 2
        ready: /health
        on_failure: restart
"""
"""Two servers, each with an engine in a new session that ignores SIGTERM."""

DIFFERENT_FIRST_RUN = """
    script: train.py
    max_restarts: 1
    services:
      server:
        command: "{first} touch tried; exec python server.py engine"
        ready: {{path: /health, timeout: {timeout}}}
        on_failure: restart
"""
"""``first`` is run before the server; the file ``tried`` exists from the second run on."""


def engines(job: Job) -> dict[str, set[int]]:
    """Return the pids of the servers' engines, by the rank of the server."""
    found: dict[str, set[int]] = {}
    for process in job.processes():
        try:
            if any("engine runs" in word for word in process.cmdline()):
                found.setdefault(process.environ()["ROLE_RANK"], set()).add(process.pid)
        except psutil.Error:
            continue
    return found


def restart_notices(text: str) -> list[str]:
    """Return the notices about workers that restart alone."""
    return re.findall(r"(?m)^clusterrun: (.*: restarting it .*)$", text)


def test_failed_server_restarts_alone(clusterrun: Launcher) -> None:
    """It keeps its port and its rank. Its engine is killed; ranks and the other server keep running."""
    script = client("""
        first, second = os.environ["CLUSTERRUN_SERVER_URLS"].split(",")
        before = [get_environment(first), get_environment(second)]
        wait_for("counted")
        get("/exit/7", first)
        after = [get_environment(first), get_environment(second)]
        for name in ("PORT", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
            print(name, [each[name] for each in before] == [each[name] for each in after])
        wait_for("counted-twice")
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
    """)
    job = start_job(clusterrun, TWO_ENGINES, script)
    job.wait_for("engine runs", 2)
    before = engines(job)
    (clusterrun.folder / "counted").touch()
    job.wait_for("engine runs", 3)
    job.wait_for("TORCHELASTIC_RESTART_COUNT True")
    after = engines(job)
    (clusterrun.folder / "counted-twice").touch()

    ended = job.ended()

    assert ended.code == 0
    assert ended.out.count(" True\n") == 4
    assert "[rank 0] attempt 0\n" in ended.out
    assert [len(re.findall(rf"\[server {rank}\] listens", ended.out)) for rank in (0, 1)] == [2, 1]
    assert after["1"] == before["1"]
    assert len(before["0"]) == len(after["0"]) == 1
    assert before["0"] != after["0"]
    assert restart_notices(ended.err) == [
        "server rank 0 ended with exit code 7: restarting it (1 of 1)",
    ]
    assert "failed" not in ended.err
    assert job.left() == []


def test_server_that_fails_twice_ends_the_job(clusterrun: Launcher) -> None:
    job_file = """
        script: train.py
        max_restarts: 1
        no_restart_exit_codes: 3
        services:
          server:
            command: "echo no such model >&2; exit 3"
            ready: /health
            on_failure: restart
    """
    ended = start_job(clusterrun, job_file, WAITS).ended()

    assert (ended.code, ended.out) == (3, "")
    assert len(restart_notices(ended.err)) == 1
    assert ended.err.count("\n    no such model\n") == 1
    assert re.search(r"clusterrun: server rank 0 on \S+ failed: exit code 3\n", ended.err)


def test_server_that_is_not_ready_in_time_is_killed_and_restarts(clusterrun: Launcher) -> None:
    """It and its child are killed, although it ignores SIGTERM."""
    first = "if ! test -e tried; then touch tried; trap '' TERM; sleep 1000 & sleep 1001; fi;"
    job_file = DIFFERENT_FIRST_RUN.format(timeout=3, first=first)
    script = """
        import os, pathlib
        def of(pid, name):
            try:
                return (pathlib.Path("/proc") / pid / name).read_bytes().decode(errors="replace")
            except OSError:
                return ""
        mine = os.environ["MARK_OF_A_TESTED_JOB"]
        sleep = [pid for pid in os.listdir("/proc") if pid.isdigit()
            and of(pid, "cmdline").startswith("sleep") and mine in of(pid, "environ")]
        print("asleep", sleep)
    """
    job = start_job(clusterrun, job_file, script)

    ended = job.ended()

    assert ended.code == 0
    assert "[rank 0] asleep []\n" in ended.out
    (notice,) = restart_notices(ended.err)
    assert re.fullmatch(
        r"server rank 0 was not ready within 3 s.*: restarting it \(1 of 1\)", notice
    )
    assert job.left() == []


HANGS_IN_SECOND_RUN = (
    "if test -e tried; then touch loads; trap '' TERM; setsid sleep 1000 & sleep 1001; fi;"
)
"""The second run ignores SIGTERM, and does not become ready."""


@pytest.mark.parametrize(
    ("how", "code"),
    [("print('trained')", 0), ("raise SystemExit('loss is nan')", 1), ("time.sleep(1000)", 143)],
    ids=["success", "failure", "signal"],
)
def test_job_ends_while_server_restarts(clusterrun: Launcher, how: str, code: int) -> None:
    job_file = DIFFERENT_FIRST_RUN.format(timeout=60, first=HANGS_IN_SECOND_RUN)
    script = client(f"get('/exit/7'); wait_for('loads'); {how}")
    job = start_job(
        clusterrun, job_file, script, "--no-restart-exit-codes=1", "--shutdown-timeout=1"
    )
    if code == 143:
        wait_until((clusterrun.folder / "loads").exists)
        job.signal(signal.SIGTERM)

    ended = job.ended()

    assert ended.code == code
    assert len(restart_notices(ended.err)) == 1
    assert ("rank 0 on" in ended.err) == (code == 1)
    assert "server rank 0 on" not in ended.err
    assert job.left() == []


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2])
def test_signal_during_restart_of_server_ends_the_job(clusterrun: Launcher, seconds: float) -> None:
    script = client(f"""
        try:
            get('/signal/9')
        except OSError:
            pass
        time.sleep({seconds})
        print("server is killed", flush=True)
        time.sleep(1000)
    """)
    job = start_job(clusterrun, TWO_ENGINES, script)
    job.wait_for("server is killed")

    job.signal(signal.SIGTERM)

    assert job.ended().code == 143
    assert job.left() == []


FORKS = """
    import os, signal, threading, time, runpy
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("forked", os.getpid(), flush=True)
        time.sleep(1000)
        os._exit(0)
    runpy.run_path("server.py")
"""

FORKS_WITH_NEW_TITLE = """
    import ctypes, os, runpy, time
    if os.fork() == 0:
        fields = open("/proc/self/stat").read().rpartition(")")[2].split()
        start, end = int(fields[47]), int(fields[48])
        ctypes.memset(start, 0, end - start)
        print("forked", os.getpid(), flush=True)
        time.sleep(1000)
        os._exit(0)
    runpy.run_path("server.py")
"""
"""The child overwrites its environment in /proc, as setproctitle does."""


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(FORKS, id="session"),
        pytest.param(FORKS_WITH_NEW_TITLE, id="title"),
        pytest.param(
            FORKS_WITH_NEW_TITLE.replace("fields =", "os.setsid(); fields ="),
            id="both",
            marks=pytest.mark.xfail(
                strict=True, reason="neither group nor environment identifies it"
            ),
        ),
    ],
)
def test_children_of_failed_server_are_killed_before_its_restart(
    clusterrun: Launcher, server: str
) -> None:
    """They may use its GPU."""
    job_file = """
        script: train.py
        max_restarts: 1
        shutdown_timeout: 3
        services:
          server: {script: forks.py, nproc_per_node: 2, ready: /health, on_failure: restart}
    """
    script = client("""
        wait_for("counted")
        get("/exit/7")
        get_environment()
        print("is ready", flush=True)
        wait_for("counted-twice")
    """)
    job = start_job(clusterrun, job_file, script, files={"forks.py": server})
    job.wait_for("forked [0-9]+", 2)
    (first,) = re.findall(r"\[server 0\] forked (\d+)", job.out)
    (other,) = re.findall(r"\[server 1\] forked (\d+)", job.out)
    (clusterrun.folder / "counted").touch()
    job.wait_for("is ready")

    living = [psutil.pid_exists(int(pid)) for pid in (first, other)]

    (clusterrun.folder / "counted-twice").touch()
    assert (job.ended().code, living) == (0, [False, True])
    assert job.left() == []


def test_ignored_failure_is_a_notice(clusterrun: Launcher) -> None:
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py], ready: /health, on_failure: ignore}
    """
    job = start_job(clusterrun, job_file, client("get('/exit/7'); time.sleep(1); print('trained')"))

    ended = job.ended()

    assert ended.code == 0
    assert "[rank 0] trained\n" in ended.out
    notice = "server rank 0 ended with exit code 7; the job continues (on_failure: ignore)"
    assert ended.err.count(f"clusterrun: {notice}\n") == 1
    assert "failed" not in ended.err


def test_events_and_log_of_restarted_server(clusterrun: Launcher) -> None:
    """The log keeps the output of the first run."""
    script = client("get('/exit/7'); get_environment(); time.sleep(2)")
    options = ("--events=events", "--log-dir=logs", "--run-id=r")
    job = start_job(clusterrun, TWO_ENGINES, script, *options)

    assert job.ended().code == 0
    [log] = (clusterrun.folder / "logs/r/attempt-0").glob("*/server-0.out")
    events = read_events(clusterrun.folder / "events")
    server = [event for event in events if event.get("service_rank") == 0]
    starts = [event for event in server if event["event"] not in {"failed", "exited"}]
    ends = [
        (event["event"], event.get("code"), event.get("signal"), event.get("stopped", False))
        for event in server
        if event["event"] in {"failed", "exited"}
    ]
    other = [event["event"] for event in events if event.get("service_rank") == 1]
    assert log.read_text().count("listens") == 2
    assert [event["event"] for event in starts] == ["started", "ready", "restarted", "ready"]
    assert {event["pid"] for event in server[:2]}.isdisjoint(
        {event["pid"] for event in server[-3:]}
    )
    assert ends == [("failed", 7, None, False), ("exited", None, signal.SIGTERM, True)]
    assert other == ["started", "ready", "exited"]
