"""Services whose workers may fail: one that starts again alone, and one that is not missed."""

import json
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusterrun.policy import node
from free_ports import free_port

from tests.contract.changed_times import command_with
from tests.contract.launched import Job, Launcher
from tests.contract.services.job_files import WAITS, asking, started
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
"""Two servers, each with an engine in a session of its own that ignores SIGTERM."""

SECOND_TIME = """
    script: train.py
    max_restarts: {restarts}
    services:
      server:
        command: "{first} touch tried; exec python server.py engine"
        ready: {{path: /health, timeout: {timeout}}}
        on_failure: restart
"""
"""``first`` is what the server does before; there is no file ``tried`` when it starts first."""

TRAINER = """
    def again(url=os.environ["CLUSTERRUN_SERVER_URL"]):
        deadline = time.monotonic() + 60
        while True:
            try:
                return json.loads(ask("/environment", url))
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def wait_for(name):
        while not os.path.exists(name):
            time.sleep(0.05)
"""


def trainer(text: str) -> str:
    """Return a script that asks servers, which may be starting ``again``."""
    return asking(TRAINER) + asking(text).removeprefix(asking(""))


def engines(job: Job) -> dict[str, set[int]]:
    """Return the processes that the servers' workers have started, by the rank of the server."""
    found: dict[str, set[int]] = {}
    for process in job.processes():
        try:
            if any("engine runs" in word for word in process.cmdline()):
                found.setdefault(process.environ()["ROLE_RANK"], set()).add(process.pid)
        except psutil.Error:
            continue
    return found


def restarts(text: str) -> list[str]:
    """Return what notices say of workers that start again."""
    return re.findall(r"(?m)^clusterrun: (.*: restarting it .*)$", text)


# Restarts of one worker.


def test_a_server_starts_again_alone(clusterrun: Launcher) -> None:
    """At its port, with its rank, and without the engine of before; ranks and the other server go on."""
    script = trainer("""
        first, second = os.environ["CLUSTERRUN_SERVER_URLS"].split(",")
        before = [again(first), again(second)]
        wait_for("counted")
        ask("/exit/7", first)
        after = [again(first), again(second)]
        for name in ("PORT", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"):
            print(name, [each[name] for each in before] == [each[name] for each in after])
        wait_for("counted again")
        print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
    """)
    job = started(clusterrun, TWO_ENGINES, script)
    job.wait_for("engine runs", 2)
    before = engines(job)
    (clusterrun.folder / "counted").touch()
    job.wait_for("engine runs", 3)
    job.wait_for("TORCHELASTIC_RESTART_COUNT True")
    after = engines(job)
    (clusterrun.folder / "counted again").touch()

    ended = job.ended()

    assert ended.code == 0
    assert ended.out.count(" True\n") == 4
    assert "[rank 0] attempt 0\n" in ended.out
    assert [len(re.findall(rf"\[server {rank}\] listens", ended.out)) for rank in (0, 1)] == [2, 1]
    assert after["1"] == before["1"]
    assert len(before["0"]) == len(after["0"]) == 1
    assert before["0"] != after["0"]
    assert restarts(ended.err) == [
        "server rank 0 ended with exit code 7: restarting it (1 of 1)",
    ]
    assert "failed" not in ended.err
    assert job.left() == []


def test_each_worker_has_its_restarts(clusterrun: Launcher) -> None:
    """After one too many, that is a failure of the job: all start again."""
    script = trainer("""
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            raise SystemExit(0)
        for url in os.environ["CLUSTERRUN_SERVER_URLS"].split(","):
            ask("/exit/7", url)
            again(url)
        ask("/signal/9", url)
        time.sleep(1000)
    """)
    job = started(clusterrun, TWO_ENGINES, script)

    ended = job.ended()

    assert ended.code == 0
    assert restarts(ended.err) == [
        f"server rank {rank} ended with exit code 7: restarting it (1 of 1)" for rank in (0, 1)
    ]
    assert re.search(r"clusterrun: server rank 1 on \S+ was killed by SIGKILL\n", ended.err)
    assert ended.err.count("restarting all workers (restart 1 of 1)\n") == 1
    assert [len(re.findall(rf"\[server {rank}\] listens", ended.out)) for rank in (0, 1)] == [3, 3]
    assert job.left() == []


def test_a_server_that_never_starts(clusterrun: Launcher) -> None:
    """Its last run is the report; the main program never starts."""
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
    ended = started(clusterrun, job_file, WAITS).ended()

    assert (ended.code, ended.out) == (3, "")
    assert len(restarts(ended.err)) == 1
    assert ended.err.count("\n    no such model\n") == 1
    assert re.search(r"clusterrun: server rank 0 on \S+ failed: exit code 3\n", ended.err)


def test_a_server_that_exits_with_0_starts_again(clusterrun: Launcher) -> None:
    """Unless the main program ends soon."""
    clusterrun.program = command_with(clusterrun.folder, node, "SECONDS_AFTER_SERVICE_EXIT", 0.5)
    script = trainer("""
        ask('/exit/0')
        print("of rank", again()["ROLE_RANK"])
    """)
    job = started(clusterrun, TWO_ENGINES, script)

    ended = job.ended()

    assert ended.code == 0
    assert "[rank 0] of rank 0\n" in ended.out
    assert restarts(ended.err) == ["server rank 0 ended with exit code 0: restarting it (1 of 1)"]


def test_a_server_that_is_not_ready_in_time_starts_again(clusterrun: Launcher) -> None:
    """It is killed first, with what it has started, although it ignores SIGTERM."""
    first = "if ! test -e tried; then touch tried; trap '' TERM; sleep 1000 & sleep 1001; fi;"
    job_file = SECOND_TIME.format(restarts=1, timeout=3, first=first)
    script = """
        import os, pathlib
        def of(pid, name):
            try:
                return (pathlib.Path("/proc") / pid / name).read_bytes().decode()
            except OSError:
                return ""
        mine = os.environ["MARK_OF_A_TESTED_JOB"]
        sleep = [pid for pid in os.listdir("/proc") if pid.isdigit()
            and of(pid, "cmdline").startswith("sleep") and mine in of(pid, "environ")]
        print("asleep", sleep)
    """
    job = started(clusterrun, job_file, script)

    ended = job.ended()

    assert ended.code == 0
    assert "[rank 0] asleep []\n" in ended.out
    (notice,) = restarts(ended.err)
    assert re.fullmatch(
        r"server rank 0 was not ready within 3 s.*: restarting it \(1 of 1\)", notice
    )
    assert job.left() == []


def test_a_server_that_fails_while_it_loads(clusterrun: Launcher) -> None:
    """Ranks wait until it is ready at last."""
    first = "if ! test -e tried; then touch tried; exit 3; fi; sleep 1; touch loaded;"
    job_file = SECOND_TIME.format(restarts=1, timeout=60, first=first)
    script = "import os; print('loaded', os.path.exists('loaded'))"
    job = started(clusterrun, job_file, script)

    ended = job.ended()

    assert (ended.code, len(restarts(ended.err))) == (0, 1)
    assert "[rank 0] loaded True\n" in ended.out


AGAIN = "if test -e tried; then touch loads; trap '' TERM; setsid sleep 1000 & sleep 1001; fi;"
"""The second run ignores SIGTERM, and is not ready."""


@pytest.mark.parametrize(
    ("how", "code"),
    [("print('trained')", 0), ("raise SystemExit('loss is nan')", 1), ("time.sleep(1000)", 143)],
    ids=["success", "failure", "signal"],
)
def test_the_job_ends_while_a_server_starts_again(
    clusterrun: Launcher, how: str, code: int
) -> None:
    """As it would without: nothing of the server is left."""
    job_file = SECOND_TIME.format(restarts=1, timeout=60, first=AGAIN) + "    shutdown_timeout: 1\n"
    script = trainer(f"ask('/exit/7'); wait_for('loads'); {how}")
    job = started(clusterrun, job_file, script, "--no-restart-exit-codes=1")
    if code == 143:
        wait_until((clusterrun.folder / "loads").exists)
        job.signal(signal.SIGTERM)

    ended = job.ended()

    assert ended.code == code
    assert len(restarts(ended.err)) == 1
    assert ("rank 0 on" in ended.err) == (code == 1)
    assert "server rank 0 on" not in ended.err
    assert job.left() == []


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.2])
def test_a_signal_just_after_a_server_has_failed(clusterrun: Launcher, seconds: float) -> None:
    """At any moment of its restart."""
    script = trainer("ask('/signal/9'); time.sleep(1000)").replace(
        "ask('/signal/9')",
        f"""
try:
    ask('/signal/9')
except OSError:
    pass
time.sleep({seconds})
print("asked", flush=True)""",
    )
    job = started(clusterrun, TWO_ENGINES, script)
    job.wait_for("asked")

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

CALLS_ITSELF_OTHERWISE = """
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
"""A child that has changed its title: that is written where /proc shows the environment (setproctitle)."""


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(FORKS, id="a session of its own"),
        pytest.param(CALLS_ITSELF_OTHERWISE, id="a title of its own"),
        pytest.param(
            CALLS_ITSELF_OTHERWISE.replace("fields =", "os.setsid(); fields ="),
            id="both",
            marks=pytest.mark.xfail(strict=True, reason="neither group nor environment tells"),
        ),
    ],
)
def test_children_that_a_server_has_forked_are_gone(clusterrun: Launcher, server: str) -> None:
    """Before it starts again: they may hold its GPU."""
    job_file = """
        script: train.py
        max_restarts: 1
        services:
          server: {script: forks.py, nproc_per_node: 2, ready: /health, on_failure: restart}
    """
    script = trainer("""
        wait_for("counted")
        ask("/exit/7")
        again()
        print("is ready", flush=True)
        wait_for("counted again")
    """)
    job = started(clusterrun, job_file, script, files={"forks.py": server})
    job.wait_for("forked [0-9]+", 2)
    (first,) = re.findall(r"\[server 0\] forked (\d+)", job.out)
    (other,) = re.findall(r"\[server 1\] forked (\d+)", job.out)
    (clusterrun.folder / "counted").touch()
    job.wait_for("is ready")

    living = [psutil.pid_exists(int(pid)) for pid in (first, other)]

    (clusterrun.folder / "counted again").touch()
    assert (job.ended().code, living) == (0, [False, True])
    assert job.left() == []


def test_a_main_program_with_the_role_of_a_service(clusterrun: Launcher) -> None:
    """Refused: their ROLE_NAME would be the same."""
    script = trainer("ask('/exit/7'); again()")
    ended = started(clusterrun, TWO_ENGINES, script, "--role=server").ended()

    assert ended.code == 2
    assert "server is the role of the main program (--role)" in ended.err


# Failures that are ignored.


def test_a_failure_is_ignored(clusterrun: Launcher) -> None:
    """A notice says so; the job succeeds."""
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py], ready: /health, on_failure: ignore}
    """
    job = started(clusterrun, job_file, asking("ask('/exit/7'); time.sleep(1); print('trained')"))

    ended = job.ended()

    assert ended.code == 0
    assert "[rank 0] trained\n" in ended.out
    notice = "server rank 0 ended with exit code 7; the job continues (on_failure: ignore)"
    assert ended.err.count(f"clusterrun: {notice}\n") == 1
    assert "failed" not in ended.err


@pytest.mark.parametrize("code", [0, 9])
def test_what_must_finish_has_when_its_failure_is_ignored(clusterrun: Launcher, code: int) -> None:
    """The job waits for its end, and no longer."""
    job_file = f"""
        script: train.py
        services:
          evaluate:
            command: "while ! test -e trained; do sleep 0.1; done; sleep 1; echo ends; exit {code}"
            on_failure: ignore
            must_finish: true
    """
    ended = started(clusterrun, job_file, "open('trained', 'w').close()").ended()

    assert (ended.code, ended.out) == (0, "[evaluate 0] ends\n")
    assert ended.err.count("the job continues (on_failure: ignore)\n") == bool(code)


@pytest.mark.parametrize(
    ("command", "code", "how"),
    [
        ("exit 7", 7, r"failed: exit code 7\n"),
        ("exec sleep 1000", 1, r"was not ready within 2 s: "),
    ],
)
def test_a_server_that_ranks_wait_for_is_not_ignored(
    clusterrun: Launcher, command: str, code: int, how: str
) -> None:
    """It will never be ready."""
    job_file = f"""
        script: train.py
        services:
          server: {{command: "{command}", ready: {{path: /, timeout: 2}}, on_failure: ignore}}
    """
    ended = started(clusterrun, job_file).ended()

    assert (ended.code, ended.out) == (code, "")
    assert re.search(rf"clusterrun: server rank 0 on \S+ {how}", ended.err)


@pytest.mark.parametrize(
    ("on_failure", "listens"), [("ignore", 1), ("restart", 2)], ids=["ignored", "restarted"]
)
def test_a_server_on_a_node_of_its_own(clusterrun: Launcher, on_failure: str, listens: int) -> None:
    """Both nodes end with 0 when the main program has."""
    job_file = f"""
        nnodes: 2
        node_ranks: 0
        max_restarts: 1
        script: train.py
        nproc_per_node: 2
        services:
          server:
            command: [python, server.py, engine]
            nnodes: 1
            ready: /health
            on_failure: {on_failure}
    """
    script = trainer(f"""
        if os.environ["RANK"] == "0":
            ask("/exit/7")
            again() if {on_failure == "restart"} else time.sleep(2)
            open("done", "w").close()
        wait_for("done")
        print("trained")
    """)
    options = ("--master-addr=127.0.0.1", f"--master-port={free_port()}", "--rdzv-timeout=60")
    jobs = [
        started(clusterrun, job_file, script, *options, f"--node-rank={rank}") for rank in (0, 1)
    ]

    ended = [job.ended() for job in jobs]

    assert [each.code for each in ended] == [0, 0]
    assert ended[0].out.count("trained\n") == 2
    assert ended[1].out.count("listens") == listens
    assert "server rank 0 ended with exit code 7" in ended[1].err
    assert [job.left() for job in jobs] == [[], []]


# What people and programs see.


def test_logs_of_a_server_that_starts_again(clusterrun: Launcher) -> None:
    """What it has printed before is kept."""
    job = started(
        *(clusterrun, TWO_ENGINES, trainer("ask('/exit/7'); again()")),
        *("--log-dir=logs", "--run-id=r"),
    )

    assert job.ended().code == 0
    (log,) = (clusterrun.folder / "logs/r/attempt-0").glob("*/server-0.out")
    assert log.read_text().count("listens") == 2


def test_what_must_finish_starts_again_until_it_has(clusterrun: Launcher) -> None:
    """The job waits for that."""
    job_file = """
        script: train.py
        max_restarts: 1
        services:
          evaluate:
            command: "if ! test -e tried; then touch tried; sleep 1; exit 9; fi; echo evaluated"
            on_failure: restart
            must_finish: true
    """
    ended = started(clusterrun, job_file).ended()

    assert ended.code == 0
    assert "[evaluate 0] evaluated\n" in ended.out
    assert restarts(ended.err) == ["evaluate rank 0 ended with exit code 9: restarting it (1 of 1)"]


def events_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_of_a_restart(clusterrun: Launcher) -> None:
    """The worker starts again, and is ready again, with another pid."""
    script = trainer("ask('/exit/7'); again(); time.sleep(2)")
    job = started(clusterrun, TWO_ENGINES, script, "--events=events")

    assert job.ended().code == 0
    events = events_in(clusterrun.folder / "events")
    of_server = [each for each in events if each.get("service_rank") == 0]
    assert [each["event"] for each in of_server if each["event"] not in {"failed", "exited"}] == [
        *("started", "ready", "restarted", "ready")
    ]
    first, second = ({each["pid"] for each in of_server[at:][:2]} for at in (0, -3))
    assert first.isdisjoint(second)
    others = [each["event"] for each in events if each.get("service_rank") == 1]
    assert others == ["started", "ready", "exited"]


def test_events_say_why_a_server_starts_again(clusterrun: Launcher) -> None:
    """And how it has ended the second time."""
    script = trainer("ask('/exit/7'); again()")
    job = started(clusterrun, TWO_ENGINES, script, "--events=events")

    assert job.ended().code == 0
    events = events_in(clusterrun.folder / "events")
    ends = [
        (each["event"], each.get("code"), each.get("signal"), each.get("stopped", False))
        for each in events
        if each.get("service_rank") == 0 and each["event"] in {"failed", "exited"}
    ]
    assert ends == [("failed", 7, None, False), ("exited", None, signal.SIGTERM, True)]
