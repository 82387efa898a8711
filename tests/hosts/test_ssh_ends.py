"""``--launcher ssh``: if the command or a connection ends, the job ends on all hosts."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.contract.launched import (
    COMMAND,
    MARK,
    Job,
    Launcher,
    plain_environment,
    remaining_processes,
)
from tests.hosts.ssh_hosts import SshHosts
from tests.waiting import wait_until

HEARTBEAT_TIMEOUT = 3

SECONDS_TO_END = 12.0
"""The heartbeat timeout, the grace period, and as much for a busy machine."""

OPTIONS = (
    *("--nproc-per-node", "2", "--heartbeat-timeout", str(HEARTBEAT_TIMEOUT)),
    *("--shutdown-timeout", "2"),
)

WORK = """
    import os, subprocess, time

    # A child that ignores what a terminal sends.
    subprocess.Popen(["sh", "-c", "trap '' HUP INT TERM; sleep 600"], start_new_session=True)
    print("working", os.environ["RANK"], flush=True)
    time.sleep(600)
"""


class Running(NamedTuple):
    """A running job on three hosts, and its processes."""

    ssh: SshHosts
    job: Job

    @property
    def client(self) -> int:
        """The process id of the command."""
        return self.job.process.pid

    def session(self, number: int) -> int:
        """Return the sshd that serves this job on a host."""
        pids = self.ssh.sessions(self.ssh.servers[number])
        return next(pid for pid in pids if _name(pid) == "sshd")

    def agent(self, number: int) -> int:
        """Return the process that ssh has started on a host."""
        pids = self.ssh.sessions(self.ssh.servers[number])
        return next(pid for pid in pids if "clusterrun.clients.ssh.bootstrap" in _command(pid))


class Fault(NamedTuple):
    """What is done to a running job, and the result of the command."""

    inject: Callable[[Running], None]
    code: int
    text: str
    """In standard error."""


def interrupt(running: Running) -> None:
    """Press Ctrl-C: the foreground process group does not include ssh."""
    os.kill(running.client, signal.SIGINT)


def kill_client(running: Running) -> None:
    os.kill(running.client, signal.SIGKILL)


def cut_a_link(running: Running) -> None:
    running.ssh.servers[1].cut()


def kill_sshd(running: Running) -> None:
    os.kill(running.session(1), signal.SIGKILL)


def stop_sshd(running: Running) -> None:
    os.kill(running.session(1), signal.SIGSTOP)


def kill_agent(running: Running) -> None:
    os.kill(running.agent(1), signal.SIGKILL)


FAULTS = {
    "Ctrl-C": Fault(interrupt, 130, "stopping 2 workers"),
    "the client killed": Fault(kill_client, -9, ""),
    "a link cut": Fault(cut_a_link, 5, "node 1 (n1) has been silent for"),
    "an sshd killed": Fault(kill_sshd, 143, "n1 has closed the connection"),
    "an sshd stopped": Fault(stop_sshd, 143, "Timeout, server n1 not responding."),
    "an agent killed": Fault(kill_agent, 5, "node 1 (n1) is gone"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fault_ends_job_on_all_hosts(name: str, ssh: SshHosts, clusterrun: Launcher) -> None:
    fault = FAULTS[name]
    ssh.configure("AddressFamily inet\n")
    job = clusterrun.script(WORK, *ssh.options(), *OPTIONS, around=ssh.client.around)
    job.wait_for("working", times=6)

    fault.inject(Running(ssh, job))

    end = job.ended(SECONDS_TO_END)
    assert (end.code, fault.text in end.err) == (fault.code, True), end
    # Before the link is restored: a host that is cut off ends by itself.
    assert remaining_processes(job.mark, SECONDS_TO_END) == []
    for stopped in [pid for host in ssh.servers for pid in ssh.sessions(host)]:
        with suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
    for host in ssh.servers:
        host.join()
    ssh.join_client()
    # An sshd may wait for the other side of a broken connection.
    sessions = [pid for host in ssh.servers for pid in ssh.sessions(host)]
    assert [it for it in map(_command, sessions) if it and not it.startswith("sshd")] == []


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return the descriptors of a terminal: the user's, and the command's."""
    ends = os.openpty()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def test_closed_terminal_ends_job(ssh: SshHosts, tmp_path: Path, terminal: tuple[int, int]) -> None:
    """The job ends as after SIGHUP, and nothing is left."""
    (tmp_path / "work.py").write_text(WORK.replace("\n    ", "\n"))
    mark = f"{os.getpid()}-terminal"
    users, commands = terminal
    words = ("setsid", "--ctty", COMMAND, *ssh.options(), *OPTIONS, "work.py")
    process = subprocess.Popen(
        [*ssh.client.around, *words],
        cwd=tmp_path,
        env={**plain_environment(), MARK: mark},
        stdin=commands,
        stdout=commands,
        stderr=commands,
    )
    os.close(commands)
    printed = bytearray()
    while printed.count(b"working") < 6:
        printed += os.read(users, 1 << 16)

    os.close(users)

    assert process.wait(SECONDS_TO_END) in {129, 141}
    assert remaining_processes(mark, SECONDS_TO_END) == []
    assert ssh.left(SECONDS_TO_END) == []


def test_spare_replaces_host_that_is_cut_off(ssh: SshHosts, clusterrun: Launcher) -> None:
    """The host that is cut off ends by itself."""
    script = """
    import os, time

    print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], os.uname().nodename, flush=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(600)
    """
    options = (*ssh.options(), *OPTIONS, "--nnodes", "2", "--spares", "1")
    job = clusterrun.script(script, *options, around=ssh.client.around)
    job.wait_for("attempt 0 n1", times=2)

    ssh.servers[1].cut()

    end = job.ended()
    assert (end.code, end.out.count("attempt 1 n2")) == (0, 2), end
    assert (
        "n1 has closed the connection; processes of the job there will exit on their own" in end.err
    )
    assert remaining_processes(job.mark, SECONDS_TO_END) == []


def test_ctrl_c_before_all_hosts_are_ready(ssh: SshHosts, clusterrun: Launcher) -> None:
    ssh.servers[1].cut()
    job = clusterrun.script(WORK, *ssh.options(), *OPTIONS, around=ssh.client.around)
    wait_until(lambda: ssh.sessions(ssh.servers[2]), "a connection to n2")

    job.signal(signal.SIGINT)

    end = job.ended(SECONDS_TO_END)
    ssh.servers[1].join()
    assert end == (130, "", "clusterrun: received SIGINT before any worker was started\n")
    assert ssh.left(SECONDS_TO_END) == []


def test_closed_pipe_ends_job_with_141(ssh: SshHosts, clusterrun: Launcher) -> None:
    script = """
    import time

    while True:
        print("line", flush=True)
        time.sleep(0.05)
    """
    around = (*ssh.client.around, "bash", "-c", '"$@" | head -n 3; exit "${PIPESTATUS[0]}"', "sh")

    end = clusterrun.script(script, *ssh.options(), *OPTIONS, around=around).ended()

    assert (end.code, end.out.count("line\n")) == (141, 3), end
    assert ssh.left(SECONDS_TO_END) == []


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""
