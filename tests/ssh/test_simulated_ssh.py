"""``--launcher ssh`` with a replacement for ssh that runs the command on this machine."""

import os
import re
import signal
import time
from collections.abc import Mapping

import pytest
from clusterrun.clients.ssh import hosts
from free_ports import free_port

from tests.contract.changed_times import command_with
from tests.contract.launched import Job, Launcher

LOCAL_SSH = """\
#!/bin/sh
# Runs the last argument, which is the command, on this host.
echo "$@" >> {folder}/words
for command; do :; done
exec sh -c "$command"
"""

REFUSED_SSH = """\
#!/bin/sh
echo + >> {folder}/log
sleep 0.2
echo - >> {folder}/log
echo "ssh: connect to host x port 22: Connection refused" >&2
exit 255
"""


def start_job(
    launcher: Launcher,
    program: str,
    *options: str,
    script: str,
    variables: Mapping[str, str] | None = None,
) -> Job:
    """Run a script with ``program`` as ssh, and with these ``variables``."""
    folder = launcher.folder / "bin"
    # It exists if it has a command with changed timeouts.
    folder.mkdir(exist_ok=True)
    ssh = folder / "ssh"
    ssh.write_text(program.format(folder=launcher.folder))
    ssh.chmod(0o755)
    environ = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **(variables or {})}
    return launcher.script(script, "--launcher", "ssh", *options, environ=environ)


def test_one_host_reports_once(clusterrun: Launcher) -> None:
    """The job runs as without ssh."""
    script = """
    import os, pathlib, sys, time

    print("rank", os.environ["RANK"], os.environ["LOCAL_WORLD_SIZE"], sys.argv[1:], flush=True)
    pathlib.Path(os.environ["RANK"]).touch()
    while not pathlib.Path("0").exists() or not pathlib.Path("1").exists():
        time.sleep(0.01)
    sys.exit(3 if os.environ["RANK"] == "1" else 0)
    """
    options = ("--hosts", "localhost", "--nproc-per-node", "2", "--ssh-options", "-p 22 -i 'a b'")

    end = start_job(clusterrun, LOCAL_SSH, *options, script=script).ended()

    assert end.code == 3, end
    assert sorted(end.out.splitlines()) == ["[rank 0] rank 0 2 []", "[rank 1] rank 1 2 []"]
    assert len(re.findall("clusterrun: rank 1 on .* failed: exit code 3", end.err)) == 1
    words = (clusterrun.folder / "words").read_text()
    assert "-o BatchMode=yes" in words
    assert "-p 22 -i a b -- localhost exec /bin/sh -c" in words
    assert "Host" not in words.replace("localhost", "")


CRASHING_AGENT_SSH = """\
#!/bin/sh
for command; do :; done
exec 3<&0
sh -c "$command" <&3 &
while ! test -e {folder}/works; do sleep 0.05; done
kill -KILL $!
echo 'Traceback (most recent call last):' >&2
echo '  File "agent.py", line 1, in f' >&2
echo 'ZeroDivisionError: division by zero' >&2
wait
exit 1
"""


def test_output_of_crashed_agent_is_shown(clusterrun: Launcher) -> None:
    """All of it is shown, not only the last line."""
    script = """
    import pathlib, time
    pathlib.Path("works").touch()
    time.sleep(60)
    """

    end = start_job(clusterrun, CRASHING_AGENT_SSH, "--hosts", "a", script=script).ended()

    assert end.code == 5, end
    assert end.err == (
        "Traceback (most recent call last):\n"
        '  File "agent.py", line 1, in f\n'
        "ZeroDivisionError: division by zero\n"
        "clusterrun: a has closed the connection; processes of the job there will exit on their own\n"
        "clusterrun: error: all connections are lost\n"
    )


def test_at_most_ten_hosts_connect_at_once(clusterrun: Launcher) -> None:
    """All hosts that fail are named in one error."""
    count = 40
    options = ("--hosts", f"gpu-[01-{count}]")

    end = start_job(clusterrun, REFUSED_SSH, *options, script="").ended()

    opened = most = 0
    for line in (clusterrun.folder / "log").read_text().split():
        opened += 1 if line == "+" else -1
        most = max(most, opened)
    assert end.code == 4, end
    # On a busy machine, most may have ended before the last one started.
    assert 1 < most <= 10
    assert end.err.startswith(
        f"clusterrun: error: {count} of {count} hosts are not ready; nothing was started\n"
        f"  gpu-01, gpu-02, gpu-03, gpu-04, gpu-05, gpu-06, gpu-07, ... and {count - 7} more:"
        " no ssh server listens there\n"
    )


def test_paused_reader_loses_nothing(clusterrun: Launcher) -> None:
    """It pauses longer than the heartbeat timeout, and no host is taken for lost."""
    script = """
    for number in range(40_000):
        print("line", number, "x" * 60)
    """
    options = ("--hosts", "a", "--heartbeat-timeout", "2")

    job = start_job(clusterrun, LOCAL_SSH, *options, script=script)
    job.wait_for("line 0 ")
    time.sleep(6.0)

    end = job.ended()
    assert (end.code, end.err) == (0, "")
    assert end.out.count("line ") == 40_000


def test_slow_check_is_not_taken_for_lost_host(clusterrun: Launcher) -> None:
    """The check takes longer than the heartbeat timeout."""
    rendezvous = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    options = ("--hosts", "a,b", "--check", "sleep 6", "--heartbeat-timeout", "2", *rendezvous)

    end = start_job(clusterrun, LOCAL_SSH, *options, script="print('worked')").ended()

    assert (end.code, end.out.count("worked")) == (0, 2), end


def test_modules_on_pythonpath_are_not_imported_by_agents(clusterrun: Launcher) -> None:
    """Only the workers import them."""
    for name in ("click", "msgspec", "psutil"):
        (clusterrun.folder / f"{name}.py").write_text("MINE = True\n")
    script = """
    import click, msgspec, psutil
    print(click.MINE, msgspec.MINE, psutil.MINE)
    """

    end = start_job(
        clusterrun,
        LOCAL_SSH,
        *("--hosts", "a"),
        script=script,
        variables={"PYTHONPATH": str(clusterrun.folder)},
    ).ended()

    assert (end.code, end.out) == (0, "True True True\n"), end


def test_signals_are_forwarded(clusterrun: Launcher) -> None:
    """USR1 reaches all workers, QUIT prints the stacks of all ranks once, Ctrl-Z only a line."""
    script = """
    import os, signal, time

    signal.signal(signal.SIGUSR1, lambda *_: print("got USR1", os.environ["RANK"], flush=True))
    print("ready", flush=True)
    while True:
        time.sleep(0.1)
    """
    rendezvous = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    job = start_job(clusterrun, LOCAL_SSH, "--hosts", "a,b", *rendezvous, script=script)
    job.wait_for("ready", times=2)

    job.signal(signal.SIGTSTP)
    job.wait_for("clusterrun: a job that ssh has started can't be paused\n")
    job.signal(signal.SIGUSR1)
    job.wait_for("got USR1 [01]", times=2)
    job.signal(signal.SIGQUIT)
    job.wait_for("ranks 0-1")
    job.signal(signal.SIGTERM)

    end = job.ended()
    assert end.code == 143, end
    assert end.err.count("ranks 0-1") == 1


@pytest.mark.long
@pytest.mark.timeout(600)
def test_64_hosts_run_one_job(clusterrun: Launcher) -> None:
    script = """
    import os
    print("here", os.environ["RANK"], os.environ["WORLD_SIZE"])
    """
    options = (
        *("--hosts", "gpu-[01-64]", "--nproc-per-node", "1"),
        *("--master-addr", "127.0.0.1", "--master-port", str(free_port())),
    )

    clusterrun.program = command_with(clusterrun.folder, hosts, "SECONDS_TO_BE_READY", 300.0)
    end = start_job(clusterrun, LOCAL_SSH, *options, script=script).ended(500)

    assert end.code == 0, end
    assert sorted(map(int, re.findall(r"here (\d+) 64", end.out))) == list(range(64))


DIFFERENT_HOSTS_SSH = """\
#!/bin/sh
for command; do :; done
case "$*" in
*" bad exec "*) echo "ssh: Could not resolve hostname bad: Name or service not known" >&2; exit 255;;
*" slow exec "*) sleep 3;;
*" down exec "*) exec sleep 100;;
esac
exec sh -c "$command"
"""


def test_slow_host_is_not_cut_off_when_another_has_a_fault(clusterrun: Launcher) -> None:
    """Its login takes longer than the heartbeat timeout."""
    options = ("--hosts", "bad,slow", "--heartbeat-timeout", "1")

    end = start_job(clusterrun, DIFFERENT_HOSTS_SSH, *options, script="").ended()

    assert end.code == 4, end
    assert end.err == (
        "clusterrun: error: one of 2 hosts is not ready; nothing was started\n"
        "  bad: its name does not resolve\n"
        "    correct the name, or add it to ~/.ssh/config\n"
    )


def test_signal_ends_job_with_one_fault_while_another_host_connects(clusterrun: Launcher) -> None:
    clusterrun.program = command_with(clusterrun.folder, hosts, "SECONDS_TO_NOTICE", 2.0)
    options = ("--hosts", "ready,bad,down", "--master-addr", "127.0.0.1")
    port = ("--master-port", str(free_port()))
    job = start_job(clusterrun, DIFFERENT_HOSTS_SSH, *options, *port, script="")
    job.wait_for("1 host not reached by ssh yet: down")

    job.signal(signal.SIGTERM)

    end = job.ended(15)
    assert end.code == 143, end
    assert end.err.endswith("clusterrun: received SIGTERM before any worker was started\n")
