"""Tests of the tests' hosts and Slurm."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.contract.launched import Ended, plain_environment
from tests.hosts.host import Host
from tests.hosts.namespaces import FOLDERS, NAMESPACES, PREFIX, processes_in, remove_leftovers
from tests.hosts.network import network
from tests.hosts.slurm import Slurm
from tests.waiting import SECONDS_TO_ACT, wait_until

ROOT = Path(__file__).parent.parent.parent

SERVE = """
import socket, sys
listening = socket.create_server(("::", 2000), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening", flush=True)
connection, _ = listening.accept()
while data := connection.recv(100):
    print("got", data.decode(), flush=True)
"""

SEND = """
import signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
connection = socket.create_connection((sys.argv[1], 2000), timeout=5)
connection.sendall(b"before")
signal.sigwait({signal.SIGUSR1})
connection.sendall(b"meanwhile")
print("sent", flush=True)
signal.pause()
"""

CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], 2000), timeout=float(sys.argv[2]))
"""

RESOLVE = """
import socket, sys
print(socket.getaddrinfo(sys.argv[1], 1, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
"""

HOLD_A_HOST = """
import os, signal
from tests.hosts.namespaces import run_of
from tests.hosts.network import network
with network(run_of(os.getpid()), "held", "n0") as made:
    made.hosts[0].start("sleep", "1000")
    print("holding", flush=True)
    signal.pause()
"""


def python(host: Host, script: str, *args: str) -> Ended:
    """Run a Python script on a host to its end."""
    return host.run(sys.executable, "-c", script, *args)


def remaining_processes(pid: int) -> list[Path]:
    """Return the namespaces and folders of the test run with this process id."""
    folders = list(FOLDERS.glob(f"{pid}-*"))
    return folders + list(NAMESPACES.glob(f"{PREFIX}{pid}-*"))


def is_running(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_host_resolves_its_own_name(hosts: tuple[Host, ...]) -> None:
    names = [host.run("hostname").out.strip() for host in hosts]
    addresses = [python(host, RESOLVE, host.name).out.strip() for host in hosts]

    assert names == ["n0", "n1", "n2", "n3"]
    assert addresses == [host.address for host in hosts]


def test_host_resolves_only_its_hosts_file(hosts: tuple[Host, ...]) -> None:
    hosts[0].set_hosts_file("10.77.0.9 elsewhere\n")

    assert python(hosts[0], RESOLVE, "elsewhere").out == "10.77.0.9\n"
    assert "Name or service not known" in python(hosts[0], RESOLVE, "n0").err
    assert "Name or service not known" in python(hosts[1], RESOLVE, "elsewhere").err


@pytest.mark.parametrize("family", ["address", "address6"])
def test_cut_link_loses_no_data_after_join(hosts: tuple[Host, ...], family: str) -> None:
    """Data that is sent meanwhile arrives later; new connections time out."""
    address = getattr(hosts[1], family)
    server = hosts[1].start(sys.executable, "-c", SERVE)
    server.wait_for("listening")
    client = hosts[0].start(sys.executable, "-c", SEND, address)
    server.wait_for("got before")

    hosts[1].cut()
    client.signal(signal.SIGUSR1)
    client.wait_for("sent")
    connecting = python(hosts[0], CONNECT, address, "0.5").err
    hosts[1].join()
    server.wait_for("got meanwhile")

    assert "timed out" in connecting


def test_networks_are_separate(hosts: tuple[Host, ...], this_run: str) -> None:
    """The same address is a different host in each."""
    server = hosts[1].start(sys.executable, "-c", SERVE)
    server.wait_for("listening")

    with network(this_run, "other", "n0", "n1") as other:
        done = python(other.hosts[0], CONNECT, hosts[1].address, "5")

    assert other.hosts[1].address == hosts[1].address
    assert "Connection refused" in done.err


def test_end_all_ends_processes_of_host(hosts: tuple[Host, ...]) -> None:
    """One has left its session and closed its output."""
    job = hosts[0].start("sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo started; exit")
    job.wait_for("started")
    before = hosts[0].processes()

    hosts[0].end_all()

    assert before
    assert hosts[0].processes() == []


def test_srun_starts_task_on_each_node(slurm: Slurm) -> None:
    done = slurm.srun("-N2", "hostname")

    assert sorted(done.out.split()) == ["n0", "n1"], done.err


def test_end_jobs_leaves_idle_nodes(slurm: Slurm) -> None:
    running = slurm.start_srun("-N2", "sh", "-c", "setsid sleep 1000 & echo started; wait")
    running.wait_for("started", times=2)
    slurm.sbatch("#!/bin/sh\nsleep 1000\n", "--nodes=2")

    slurm.end_jobs()

    assert running.left() == []
    assert slurm.run("squeue", "--noheader", "--states=PENDING,RUNNING").out == ""
    assert slurm.srun("-N2", "true").code == 0


@pytest.mark.usefixtures("slurm_of_session")
def test_session_leaves_nothing_behind() -> None:
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "resolves_its_own_name or starts_task_on",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=ROOT,
        env=plain_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )

    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0, out
    assert "2 passed" in out
    assert remaining_processes(process.pid) == []


def test_leftovers_of_killed_run_are_removed(hosts: tuple[Host, ...]) -> None:
    """A run that is still alive keeps its hosts."""
    environ = {**plain_environment(), "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}
    words = [sys.executable, "-c", HOLD_A_HOST]
    killed = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE)
    assert killed.stdout is not None
    killed.stdout.readline()
    made = remaining_processes(killed.pid)
    # On a busy machine a started process may not have entered the namespace yet.
    sleeping = wait_until(
        lambda: [pid for path in made for pid in processes_in(path.name)], "a process on the host"
    )

    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=SECONDS_TO_ACT)
    remove_leftovers()

    assert len(made) == len(["the folder", "the switch", "n0"])
    assert remaining_processes(killed.pid) == []
    assert [pid for pid in sleeping if is_running(pid)] == []
    assert hosts[0].run("true").code == 0
