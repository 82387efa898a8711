"""How a job with services ends: the first failure ends all of it, success ends the services, nothing is left."""

import re
import signal
import subprocess
import sys
import time
from textwrap import dedent

import pytest
from clusterrun.policy import node, service_progress

from tests.contract.changed_times import command_with
from tests.contract.launched import COMMAND, SECONDS_TO_VANISH, Launcher, remaining_processes
from tests.contract.services.job_files import ONE_SERVER, WAITS, asking, started, write
from tests.contract.shell import Shell

ENGINE = """
    script: train.py
    nproc_per_node: 2
    services:
      server: {command: [python, server.py, engine], ready: /health}
"""
"""A server whose engine has a session of its own, and ignores SIGTERM."""


def test_a_server_that_cannot_start(clusterrun: Launcher) -> None:
    """It is named, with what it has printed; the main program never starts."""
    job_file = """
        script: train.py
        services:
          server: {command: "echo no such model >&2; exit 3", ready: /health}
    """
    ended = started(clusterrun, job_file).ended()

    assert (ended.code, ended.out) == (3, "")
    assert re.search(r"clusterrun: server rank 0 on \S+ failed: exit code 3\n", ended.err)
    assert "\n    no such model\n" in ended.err
    assert ended.err.endswith("clusterrun: exit code 3, from server rank 0\n")


def test_a_command_that_is_not_there(clusterrun: Launcher) -> None:
    """Nothing is started."""
    job_file = """
        script: train.py
        services:
          server: {command: [no-such-command], ready: /health}
    """
    ended = started(clusterrun, job_file).ended()

    assert (ended.code, ended.out) == (2, "")
    assert "services.server: there is no program no-such-command\n" in ended.err


@pytest.mark.parametrize(
    ("path", "code", "how"),
    [("/exit/7", 7, "failed: exit code 7"), ("/signal/9", 137, "was killed by SIGKILL")],
)
def test_a_server_fails_while_ranks_wait_for_it(
    clusterrun: Launcher, path: str, code: int, how: str
) -> None:
    """The trainer would retry for ever: it is stopped, and is not the cause. Its engine is gone, too."""
    script = asking(f"""
        if os.environ["RANK"] == "0":
            try:
                ask("{path}")
            except OSError:
                pass
        time.sleep(1000)
    """)
    job = started(clusterrun, ENGINE, script)

    ended = job.ended()

    assert ended.code == code
    assert re.search(rf"clusterrun: server rank 0 on \S+ {how}\n", ended.err)
    assert "  ranks 0-1: stopped by clusterrun\n" in ended.err
    assert "rank 0 on" not in ended.err.replace("server rank 0 on", "")
    assert job.left() == []


@pytest.mark.parametrize("server", ["", "raises", "deaf", "engine"])
def test_the_main_program_fails(clusterrun: Launcher, server: str) -> None:
    """No server keeps a GPU; what it raises while it is stopped is no cause."""
    job_file = f"""
        script: train.py
        shutdown_timeout: 1
        services:
          server:
            command: [python, server.py, "{server}"]
            nproc_per_node: 2
            ready: /health
    """
    job = started(clusterrun, job_file, "raise SystemExit('loss is nan')")

    ended = job.ended()

    assert ended.code == 1
    assert len(re.findall(r"(?m)^clusterrun: .* failed: ", ended.err)) == 1
    assert re.search(r"clusterrun: rank 0 on \S+ failed: exit code 1\n", ended.err)
    assert "\n    loss is nan\n" in ended.err
    assert re.search(r"\n  server ranks 0-1: stopped by clusterrun", ended.err)
    assert ended.err.endswith("clusterrun: exit code 1, from rank 0\n")
    assert job.left() == []


@pytest.mark.parametrize("server", ["raises", "deaf", "engine"])
def test_success_ends_any_server(clusterrun: Launcher, server: str) -> None:
    """Exit code 0, however it ends, and nothing of it runs on."""
    job_file = f"""
        script: train.py
        shutdown_timeout: 1
        services:
          server: {{command: [python, server.py, {server}], ready: /health}}
    """
    job = started(clusterrun, job_file)

    ended = job.ended()

    assert ended.code == 0
    assert "[rank 0] trained\n" in ended.out
    assert "failed" not in ended.err
    assert job.left() == []


def test_a_server_that_exits_early(clusterrun: Launcher) -> None:
    """Exit code 0 is a failure of a server, while others may wait for it."""
    clusterrun.program = command_with(clusterrun.folder, node, "SECONDS_AFTER_SERVICE_EXIT", 0.5)
    script = asking("ask('/exit/0'); time.sleep(1000)")
    job = started(clusterrun, ONE_SERVER, script)

    ended = job.ended()

    assert ended.code == 1
    assert re.search(
        r"clusterrun: server rank 0 on \S+ exited with code 0 while the job was still running:"
        r" a service must keep running\n",
        ended.err,
    )
    assert ended.err.endswith("clusterrun: exit code 1, from server rank 0\n")


def test_the_trainer_tells_its_server_to_exit(clusterrun: Launcher) -> None:
    """Then it ends itself, soon after: that is no failure."""
    job = started(clusterrun, ONE_SERVER, asking("ask('/exit/0'); time.sleep(0.5)"))

    ended = job.ended()

    assert (ended.code, ended.err.count("failed")) == (0, 0)


def test_a_server_is_never_ready(clusterrun: Launcher) -> None:
    """It is killed, and named with what its port has answered and its last lines."""
    job_file = """
        script: train.py
        services:
          server:
            command: "echo loads a model >&2; exec python server.py"
            ready: {path: /healthz, timeout: 3}
    """
    job = started(clusterrun, job_file)

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


def test_what_must_finish_ends_first(clusterrun: Launcher) -> None:
    """The job waits for both: an orchestrator's clean end does not cut off the trainer."""
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py], ready: /health}
          orchestrator: {command: "echo all rollouts", after: server, must_finish: true}
    """
    job = started(clusterrun, job_file, asking("time.sleep(1.5); ask('/health'); print('saved')"))

    ended = job.ended()

    assert ended.code == 0
    assert "[orchestrator 0] all rollouts\n" in ended.out
    assert "[rank 0] saved\n" in ended.out
    assert job.left() == []


def test_what_must_finish_ends_last(clusterrun: Launcher) -> None:
    """The final evaluation is not killed, and its server still answers."""
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py], ready: /health}
          evaluate: {script: evaluate.py, must_finish: true}
    """
    evaluate = asking("""
        while not os.path.exists("checkpoint"):
            time.sleep(0.05)
        time.sleep(1)
        ask("/health")
        print("evaluated")
    """)
    script = "open('checkpoint', 'w').close()"
    job = started(clusterrun, job_file, script, files={"evaluate.py": evaluate})

    ended = job.ended()

    assert (ended.code, "[evaluate 0] evaluated\n" in ended.out) == (0, True)
    assert job.left() == []


def test_what_must_finish_fails(clusterrun: Launcher) -> None:
    """Also when the main program has succeeded: the job has not."""
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py], ready: /health}
          evaluate: {command: "while ! test -e trained; do sleep 0.1; done; sleep 0.5; exit 9", must_finish: true}
    """
    ended = started(clusterrun, job_file, "open('trained', 'w').close()").ended()

    assert ended.code == 9
    assert re.search(r"clusterrun: evaluate rank 0 on \S+ failed: exit code 9\n", ended.err)


def test_an_orchestrator_fails(clusterrun: Launcher) -> None:
    """Trainer and servers do not hold the nodes until the job's time is over."""
    job_file = """
        script: train.py
        services:
          server: {command: [python, server.py, engine], ready: /health}
          orchestrator: {command: [python, -c, "import time; time.sleep(1); 1 / 0"], after: server, must_finish: true}
    """
    job = started(clusterrun, job_file, WAITS)

    ended = job.ended()

    assert ended.code == 1
    assert re.search(
        r"clusterrun: orchestrator rank 0 on \S+ failed: ZeroDivisionError: division by zero\n",
        ended.err,
    )
    assert len(re.findall(r"(?m)^clusterrun: .* failed: ", ended.err)) == 1
    assert job.left() == []


def test_an_orchestrator_waits_for_what_never_comes(clusterrun: Launcher) -> None:
    """The trainer has ended; servers print on, and are no sign of progress: the job hangs."""
    job_file = """
        script: train.py
        hang_timeout: 3
        on_hang: stop
        services:
          server: {command: [python, server.py, prints], ready: /health}
          orchestrator: {command: "echo waits for a policy; sleep 1000", after: server, must_finish: true}
    """
    job = started(clusterrun, job_file)

    ended = job.ended()

    assert ended.code == 7
    assert "orchestrator" in ended.err.partition("hang")[2]
    assert job.left() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("moment", ["it loads", "ranks run"])
def test_the_job_is_cancelled(clusterrun: Launcher, number: int, code: int, moment: str) -> None:
    """By a scheduler, or Ctrl-C; also behind a shell that waits, as ``uv run`` or a script does."""
    job_file = """
        script: train.py
        shutdown_timeout: 2
        services:
          server:
            command: "python server.py engine & wait"
            ready: {ready}
    """
    ready = "/health" if moment == "ranks run" else "/never"
    job = started(clusterrun, job_file.replace("{ready}", ready), WAITS)
    job.wait_for("engine runs")
    job.wait_for("trains" if moment == "ranks run" else "listens")

    job.signal(number)

    ended = job.ended()
    assert ended.code == code
    assert ("trains" in ended.out) == (moment == "ranks run")
    assert job.left() == []


def test_a_server_signals_its_own_group(clusterrun: Launcher) -> None:
    """As some do when they shut down: it is the one that failed, and the others got nothing."""
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
        time.sleep(1000)
    """
    ended = started(clusterrun, job_file, script).ended()

    assert ended.code == 143
    assert re.search(r"clusterrun: killer rank 0 on \S+ was killed by SIGTERM\n", ended.err)
    assert "\n  rank 0: stopped by clusterrun, exit code 5\n" in ended.err


def test_a_program_of_the_same_name_outside_lives_on(clusterrun: Launcher) -> None:
    """The clean-up finds the job's own processes, and no others, whatever their command lines."""
    script = asking("print('trained')")
    words = [sys.executable, "-c", "import time; time.sleep(1000)", "server.py", "engine"]
    outside = subprocess.Popen(words, cwd=clusterrun.folder)
    try:
        for _ in range(2):
            job = started(clusterrun, ENGINE, script)
            assert job.ended().code == 0
            assert job.left() == []
        assert outside.poll() is None
    finally:
        outside.kill()
        outside.wait()


def test_a_restart_keeps_ports(clusterrun: Launcher) -> None:
    """All programs start again, servers first; those of the attempt before are gone, engines, too."""
    job_file = dedent(ENGINE) + "max_restarts: 1\n"
    script = asking("""
        attempt, environment = os.environ["TORCHELASTIC_RESTART_COUNT"], json.loads(ask("/environment"))
        assert environment["TORCHELASTIC_RESTART_COUNT"] == attempt
        if os.environ["RANK"] == "0":
            print("port", environment["PORT"])
        if attempt == "0":
            open("started" + os.environ["RANK"], "w").close()
            while not (os.path.exists("started0") and os.path.exists("started1")):
                time.sleep(0.05)
            raise SystemExit(f"rank {os.environ['RANK']} fails")
    """)
    job = started(clusterrun, job_file, script)

    ended = job.ended()

    assert ended.code == 0
    assert ended.err.count("restarting all workers (restart 1 of 1)\n") == 1
    first, second = job.numbers("port", 2)
    assert first == second
    assert len(set(job.numbers("listens", 2))) == 2
    order = re.findall(r"(?m)(listens|port) \d+$", ended.out)
    assert order == ["listens", "port", "listens", "port"]


def test_a_restart_finds_no_process_of_the_attempt_before(clusterrun: Launcher) -> None:
    """A server that starts again has its GPUs for itself."""
    job_file = """
        script: train.py
        max_restarts: 1
        services:
          server: {command: "python server.py engine & wait", ready: /health}
    """
    script = """
        import os, subprocess
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        mine = os.environ["MARK_OF_A_TESTED_JOB"].encode()
        engines = 0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = open(f"/proc/{pid}/cmdline", "rb").read()
                found = b"engine runs" in words and mine in open(f"/proc/{pid}/environ", "rb").read()
            except OSError:
                continue
            engines += found
        print("attempt", attempt, "engines", engines)
        raise SystemExit("fails" if attempt == "0" else 0)
    """
    job = started(clusterrun, job_file, script)

    ended = job.ended()

    assert ended.code == 0
    assert "attempt 0 engines 1\n" in ended.out
    assert "attempt 1 engines 1\n" in ended.out


def test_a_restart_after_a_server_has_failed(clusterrun: Launcher) -> None:
    """It is the job's restart: ranks start again, too."""
    script = asking("""
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            ask("/exit/7")
            time.sleep(1000)
        print("trained")
    """)
    job = started(clusterrun, ONE_SERVER, script, "--max-restarts=1")

    ended = job.ended()

    assert ended.code == 0
    assert re.search(r"clusterrun: server rank 0 on \S+ failed: exit code 7\n", ended.err)
    assert "[rank 0] trained\n" in ended.out


def test_who_is_waited_for(clusterrun: Launcher) -> None:
    """A job whose servers load for minutes says so now and then."""
    name = "SECONDS_TO_FIRST_NOTICE"
    clusterrun.program = command_with(clusterrun.folder, service_progress, name, 0.5)
    job_file = """
        script: train.py
        services:
          server: {command: [sleep, "1000"], nproc_per_node: 2, ready: tcp}
          judge: {command: [sleep, "1000"], ready: tcp}
          other: {command: [sleep, "1000"]}
    """
    job = started(clusterrun, job_file)

    job.wait_for("the job has been waiting [0-9]+ s for server ranks 0-1, judge rank 0 to be ready")


def test_what_must_finish_ends_before_it_is_ready(clusterrun: Launcher) -> None:
    """Nothing can become of it any more: the job does not wait for ever."""
    job_file = """
        script: train.py
        services:
          prepare: {command: [echo, prepared], ready: {path: /, timeout: 2}, must_finish: true}
    """
    ended = started(clusterrun, job_file).ended(20)

    assert ended.code == 1
    assert "prepare rank 0" in ended.err


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.6, 0.9, 1.2])
def test_cancelled_while_it_starts(clusterrun: Launcher, seconds: float) -> None:
    """At any moment: children that a server has just started are found, too."""
    job = started(clusterrun, ENGINE, WAITS)
    time.sleep(seconds)

    job.signal(signal.SIGTERM)

    assert job.ended().code in {143, -signal.SIGTERM}
    assert job.left() == []


def test_ctrl_c_at_a_terminal(shell: Shell) -> None:
    """All are stopped, also the one rank that would have the terminal for itself without services."""
    write(shell.folder, ENGINE.replace("nproc_per_node: 2", "nproc_per_node: 1"), WAITS)
    shell.type(f"{COMMAND} --config job.yaml")
    shell.expect("trains")

    shell.press("Ctrl-C")

    shell.expect("interrupted: stopping 2 workers")
    assert shell.exit_code() == 130
    assert remaining_processes(shell.mark, SECONDS_TO_VANISH, besides=shell.pid) == []
