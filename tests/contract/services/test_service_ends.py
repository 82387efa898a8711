"""The end of a job with services: a failure ends all programs, and success ends the services."""

import re
import signal
import subprocess
import sys
import time
from textwrap import dedent

import pytest
from clusterrun.policy import node

from tests.contract.changed_times import command_with
from tests.contract.launched import COMMAND, SECONDS_TO_VANISH, Launcher, remaining_processes
from tests.contract.services.job_files import ONE_SERVER, WAITS, client, start_job, write_job
from tests.contract.shell import Shell

ENGINE = """
    script: train.py
    nproc_per_node: 2
    services:
      server: {command: [python, server.py, engine], ready: /health}
"""
"""A server whose engine is in a new session and ignores SIGTERM."""


def test_failure_of_a_server_before_it_is_ready(clusterrun: Launcher) -> None:
    """The report has its output and names its log. The main program does not start."""
    job_file = """
        script: train.py
        services:
          server: {command: "echo no such model >&2; exit 3", ready: /health}
    """
    ended = start_job(clusterrun, job_file, "", "--log-dir=logs", "--run-id=r").ended()

    assert (ended.code, ended.out) == (3, "")
    assert re.search(r"clusterrun: server rank 0 on \S+ failed: exit code 3\n", ended.err)
    assert "\n    no such model\n" in ended.err
    assert re.search(r"\n  its log: \S+/logs/r/attempt-0/\S+/server-0\.err\n", ended.err)
    assert ended.err.endswith("clusterrun: exit code 3, from server rank 0\n")


@pytest.mark.parametrize(
    ("path", "code", "how"),
    [("/exit/7", 7, "failed: exit code 7"), ("/signal/9", 137, "was killed by SIGKILL")],
)
def test_failed_server_is_the_cause(clusterrun: Launcher, path: str, code: int, how: str) -> None:
    """The main program may still wait for an answer."""
    script = client(f"""
        if os.environ["RANK"] == "0":
            try:
                get("{path}")
            except OSError:
                pass
        time.sleep(1000)
    """)
    job = start_job(clusterrun, ENGINE, script)

    ended = job.ended()

    assert ended.code == code
    assert re.search(rf"clusterrun: server rank 0 on \S+ {how}\n", ended.err)
    assert "  ranks 0-1: stopped by clusterrun\n" in ended.err
    assert "rank 0 on" not in ended.err.replace("server rank 0 on", "")
    assert job.left() == []


@pytest.mark.parametrize("server", ["", "raises", "ignores-term", "engine"])
@pytest.mark.parametrize("succeeds", [True, False])
def test_end_of_main_program_ends_any_server(
    clusterrun: Launcher, server: str, *, succeeds: bool
) -> None:
    """An exception that a server raises when it is stopped is not a failure, and not the cause."""
    job_file = f"""
        script: train.py
        shutdown_timeout: 1
        services:
          server:
            command: [python, server.py, "{server}"]
            nproc_per_node: 2
            ready: /health
    """
    script = "print('trained')" if succeeds else "raise SystemExit('loss is nan')"
    job = start_job(clusterrun, job_file, script)

    ended = job.ended()

    failures = re.findall(r"(?m)^clusterrun: .* failed: .*", ended.err)
    assert job.left() == []
    if succeeds:
        assert (ended.code, failures) == (0, [])
        assert "[rank 0] trained\n" in ended.out
        assert "failed" not in ended.err
    else:
        assert (ended.code, len(failures)) == (1, 1)
        assert re.search(r"clusterrun: rank 0 on \S+ failed: exit code 1\n", ended.err)
        assert "\n    loss is nan\n" in ended.err
        assert re.search(r"\n  server ranks 0-1: stopped by clusterrun", ended.err)
        assert ended.err.endswith("clusterrun: exit code 1, from rank 0\n")


def test_exit_code_0_of_a_server_is_a_failure_while_ranks_run(clusterrun: Launcher) -> None:
    clusterrun.program = command_with(clusterrun.folder, node, "SECONDS_AFTER_SERVICE_EXIT", 0.5)
    script = client("get('/exit/0'); time.sleep(1000)")
    job = start_job(clusterrun, ONE_SERVER, script)

    ended = job.ended()

    assert ended.code == 1
    assert re.search(
        r"clusterrun: server rank 0 on \S+ exited with code 0 while the job was still running:"
        r" a service must keep running\n",
        ended.err,
    )
    assert ended.err.endswith("clusterrun: exit code 1, from server rank 0\n")


def test_server_that_is_not_ready_in_time_is_killed(clusterrun: Launcher) -> None:
    """The report has the last answer of its port, and its last lines."""
    job_file = """
        script: train.py
        services:
          server:
            command: "echo loads a model >&2; exec python server.py"
            ready: {path: /healthz, timeout: 3}
    """
    job = start_job(clusterrun, job_file)

    ended = job.ended()

    assert ended.code == 1
    assert re.search(
        r"clusterrun: server rank 0 on \S+ was not ready within 3 s:"
        r" GET http://127.0.0.1:\d+/healthz: HTTP/1.0 404 Not Found\n",
        ended.err,
    )
    assert "\n    loads a model\n" in ended.err
    assert "trained" not in ended.out
    assert ended.err.endswith("clusterrun: exit code 1, from server rank 0\n")


def test_service_that_must_finish_is_waited_for(clusterrun: Launcher) -> None:
    """Its server still answers."""
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py], ready: /health}
          evaluate: {script: evaluate.py, must_finish: true}
    """
    evaluate = client("""
        while not os.path.exists("checkpoint"):
            time.sleep(0.05)
        time.sleep(1)
        get("/health")
        print("evaluated")
    """)
    script = "open('checkpoint', 'w').close()"
    job = start_job(clusterrun, job_file, script, files={"evaluate.py": evaluate})

    ended = job.ended()

    assert (ended.code, "[evaluate 0] evaluated\n" in ended.out) == (0, True)
    assert job.left() == []


def test_output_of_servers_does_not_prevent_a_hang(clusterrun: Launcher) -> None:
    """The orchestrator waits for a trainer that has ended."""
    job_file = """
        script: train.py
        hang_timeout: 3
        on_hang: stop
        services:
          server: {command: [python, server.py, prints], ready: /health}
          orchestrator: {command: "echo waits for a policy; sleep 1000", after: server, must_finish: true}
    """
    job = start_job(clusterrun, job_file)

    ended = job.ended()

    assert ended.code == 7
    assert "orchestrator" in ended.err.partition("hang")[2]
    assert job.left() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("state", ["loading", "running"])
def test_signal_ends_all_programs(clusterrun: Launcher, number: int, code: int, state: str) -> None:
    """The server may run below a shell that waits for it."""
    job_file = """
        script: train.py
        shutdown_timeout: 2
        services:
          server:
            command: "python server.py engine & wait"
            ready: {ready}
    """
    ready = "/health" if state == "running" else "/never"
    job = start_job(clusterrun, job_file.replace("{ready}", ready), WAITS)
    job.wait_for("engine runs")
    job.wait_for("trains" if state == "running" else "listens")

    job.signal(number)

    ended = job.ended()
    assert ended.code == code
    assert ("trains" in ended.out) == (state == "running")
    assert job.left() == []


def test_signal_of_a_server_to_its_process_group_reaches_no_other_program(
    clusterrun: Launcher,
) -> None:
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py], ready: /health}
          killer:
            command: [python, -c, "import os, time; time.sleep(1); os.killpg(0, 15); time.sleep(9)"]
    """
    script = """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: exit(5))
        while True: time.sleep(0.1)
    """
    ended = start_job(clusterrun, job_file, script).ended()

    assert ended.code == 143
    assert re.search(r"clusterrun: killer rank 0 on \S+ was killed by SIGTERM\n", ended.err)
    assert "\n  rank 0: stopped by clusterrun, exit code 5\n" in ended.err


def test_process_outside_the_job_with_equal_arguments_is_not_killed(clusterrun: Launcher) -> None:
    script = client("print('trained')")
    words = [sys.executable, "-c", "import time; time.sleep(1000)", "server.py", "engine"]
    outside = subprocess.Popen(words, cwd=clusterrun.folder)
    try:
        for _ in range(2):
            job = start_job(clusterrun, ENGINE, script)
            assert job.ended().code == 0
            assert job.left() == []
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


def test_restart_keeps_ports_and_no_processes(clusterrun: Launcher) -> None:
    """All programs start again, servers first. Engines of the previous attempt have ended."""
    command = '"python server.py engine & wait"'
    job_file = (
        dedent(ENGINE).replace("[python, server.py, engine]", command)
        + "max_restarts: 1\nshutdown_timeout: 2\n"
    )
    script = client("""
        def is_engine(pid):
            try:
                words = open(f"/proc/{pid}/cmdline", errors="replace").read()
                variables = open(f"/proc/{pid}/environ", errors="replace").read()
            except OSError:
                return False
            return "engine runs" in words and os.environ["MARK_OF_A_TESTED_JOB"] in variables

        attempt, environment = os.environ["TORCHELASTIC_RESTART_COUNT"], json.loads(get("/environment"))
        assert environment["TORCHELASTIC_RESTART_COUNT"] == attempt
        if os.environ["RANK"] == "0":
            print("engines", sum(is_engine(pid) for pid in os.listdir("/proc") if pid.isdigit()))
            print("port", environment["PORT"])
        if attempt == "0":
            open("started" + os.environ["RANK"], "w").close()
            while not (os.path.exists("started0") and os.path.exists("started1")):
                time.sleep(0.05)
            raise SystemExit(f"rank {os.environ['RANK']} fails")
    """)
    job = start_job(clusterrun, job_file, script)

    ended = job.ended()

    assert ended.code == 0
    assert ended.err.count("restarting all workers (restart 1 of 1)\n") == 1
    assert job.numbers("engines", 2) == [1, 1]
    first, second = job.numbers("port", 2)
    assert first == second
    assert len(set(job.numbers("listens", 2))) == 2
    order = re.findall(r"(?m)(listens|port) \d+$", ended.out)
    assert order == ["listens", "port", "listens", "port"]


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6, 0.9, 1.2])
def test_sigterm_while_starting_leaves_no_process(clusterrun: Launcher, seconds: float) -> None:
    job = start_job(clusterrun, ENGINE, WAITS)
    time.sleep(seconds)

    job.signal(signal.SIGTERM)

    assert job.ended().code in {143, -signal.SIGTERM}
    assert job.left() == []


def test_ctrl_c_at_a_terminal_ends_all_programs(shell: Shell) -> None:
    """With services, a single rank does not get the terminal."""
    write_job(shell.folder, ENGINE.replace("nproc_per_node: 2", "nproc_per_node: 1"), WAITS)
    shell.type(f"{COMMAND} --config job.yaml")
    shell.expect("trains")

    shell.press("Ctrl-C")

    shell.expect("interrupted: stopping 2 workers")
    assert shell.exit_code() == 130
    assert remaining_processes(shell.mark, SECONDS_TO_VANISH, besides=shell.pid) == []
