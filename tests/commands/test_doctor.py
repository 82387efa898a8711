"""``clusterrun doctor`` with one fault at a time, through the installed command."""

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port

from tests.commands.run_commands import run_command
from tests.contract.launched import Ended, Launcher

DEPENDS_ON_THE_MACHINE = (
    *("host name", "CPU load", "memory", "CPU quota", "CPU governor", "GPU", "torch", "link"),
    *("open files", "processes", "locked memory", "shared memory", "NUMA node", "slow GPUs"),
)
"""Checks that may fail on the machine of the tests."""

SECONDS_FOR_NODES = 150.0
"""An idle machine needs ten."""

SPINS = """
import time
print("spins", flush=True)
until = time.monotonic() + 60
while time.monotonic() < until:
    pass
"""


def doctor(*around: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and the findings by what was checked."""
    done = run_command(variables, "doctor", "--json", around=around)
    assert done.stdout, done.stderr
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {finding["what"]: finding for finding in findings}


def in_namespace(script: str) -> tuple[str, ...]:
    """Return a prefix that runs ``script`` in a mount namespace before a command."""
    return ("unshare", "--mount", "--uts", "sh", "-ec", f'{script}\nexec "$@"', "sh")


def test_healthy_machine_has_no_findings(tmp_path: Path) -> None:
    """Findings that depend on the machine of the tests are ignored. No file is left behind."""
    _, found = doctor(TMPDIR=str(tmp_path))

    faults = [
        what
        for what, finding in found.items()
        if finding["level"] != "ok" and not what.startswith(DEPENDS_ON_THE_MACHINE)
    ]
    assert faults == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("variable", "value"), [("NCCL_SOCKET_IFNAME", "nosuch"), ("GLOO_SOCKET_IFNAME", "nosuch0")]
)
def test_interface_that_does_not_exist(variable: str, value: str) -> None:
    """The advice names the interfaces that exist."""
    code, found = doctor(**{variable: value})

    assert code == 1
    assert found[variable]["level"] == "failure"
    assert "give one of lo" in found[variable]["advice"]


@pytest.mark.needs("prlimit")
def test_low_limit_of_open_files() -> None:
    """The advice has the command."""
    code, found = doctor("prlimit", "--nofile=256:2048")

    assert code == 1
    assert found["open files"]["level"] == "failure"
    assert "ulimit -n 2048" in found["open files"]["advice"]


@pytest.mark.needs("root", "unshare")
def test_small_shared_memory() -> None:
    """Docker's default is 64 MiB."""
    code, found = doctor(*in_namespace("mount -t tmpfs -o size=64m none /dev/shm"))

    finding = found["shared memory (/dev/shm)"]
    assert code == 1
    assert finding["level"] == "failure"
    assert finding["found"] == "64 MiB, 64 MiB free"


@pytest.mark.needs("root", "unshare")
def test_full_disk_for_temporary_files(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=256k none {tmp_path}"
    code, found = doctor(*in_namespace(mount), TMPDIR=str(tmp_path))

    finding = found[f"temporary files ({tmp_path})"]
    assert code == 1
    assert (finding["level"], finding["found"]) == ("failure", "No space left on device")


@pytest.mark.needs("root", "unshare")
def test_host_name_with_foreign_address(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("10.254.9.9 node7\n")
    rename = f"mount --bind {hosts} /etc/hosts; hostname node7"
    code, found = doctor(*in_namespace(rename))

    finding = found["host name (node7)"]
    assert code == 1
    assert (finding["level"], finding["found"]) == ("failure", "10.254.9.9")


@pytest.mark.needs("root", "unshare")
def test_loopback_is_down() -> None:
    """A network namespace begins without its loopback interface."""
    code, found = doctor("unshare", "--net")

    assert code == 1
    assert found["loopback"]["found"] == (
        "this machine can't reach itself at 127.0.0.1: Network is unreachable"
    )


@pytest.mark.long
def test_busy_cpus() -> None:
    """The process that uses them is named."""
    spinning = [
        subprocess.Popen([sys.executable, "-c", SPINS], stdout=subprocess.PIPE)
        for _ in os.sched_getaffinity(0)
    ]
    try:
        for process in spinning:
            assert process.stdout is not None
            assert process.stdout.readline() == b"spins\n"
        _, found = doctor()
    finally:
        for process in spinning:
            process.kill()
            process.communicate()

    assert found["CPU load"]["level"] == "warning"
    assert "python" in found["CPU load"]["found"]


@pytest.mark.long
def test_ctrl_c_ends_check_of_nodes(clusterrun: Launcher) -> None:
    """No process of the check is left."""
    address = ("--master-addr=127.0.0.1", f"--master-port={free_port()}")
    job = clusterrun.command("doctor", "--nnodes=2", "--node-rank=0", *address)
    job.wait_for("1 of 2 nodes have joined")

    job.signal(signal.SIGINT)

    assert job.ended().code == 128 + signal.SIGINT
    assert job.left() == []


@pytest.mark.long
def test_table_ends_with_advice() -> None:
    done = run_command({"GLOO_SOCKET_IFNAME": "nosuch0"}, "doctor")

    assert done.returncode == 1
    assert "failure  GLOO_SOCKET_IFNAME" in done.stdout
    assert (
        "\nfailure: GLOO_SOCKET_IFNAME: no interface has that name: unset the variable"
        in done.stdout
    )


def two_nodes(clusterrun: Launcher, second: Mapping[str, str]) -> tuple[Ended, Ended]:
    """Check two nodes on this machine; ``second`` are variables of node 1."""
    where = ("--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    # It runs doctor, which must not run itself.
    checks = {"CLUSTERRUN_CHECK": "clusterrun doctor"}
    jobs = [
        clusterrun.command(
            *("doctor", *where, f"--node-rank={rank}", "--json"),
            workers=None,
            environ={**checks, **(second if rank else {})},
        )
        for rank in range(2)
    ]
    first, other = (job.ended(SECONDS_FOR_NODES) for job in jobs)
    assert [job.left() for job in jobs] == [[], []]
    return first, other


def test_two_nodes(clusterrun: Launcher) -> None:
    """Node 0 prints one table, and the other node exits with the same code."""
    first, other = two_nodes(clusterrun, {})

    found = {each["what"]: each for each in json.loads(first.out)["findings"]}
    assert (first.code, other.code, other.out) == (0, 0, ""), first
    for what in ("versions", "ports", "names", "clocks", "links", "all_reduce of all nodes (gloo)"):
        assert found[what]["level"] == "ok", found
    assert list(clusterrun.folder.glob(".clusterrun-doctor-*")) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("torch", "why"),
    [
        ("raise ImportError('libcudart.so.12')", "ImportError: libcudart.so.12"),
        ("import os; os.abort()", "its process crashes"),
    ],
)
def test_node_with_broken_torch(torch: str, why: str, clusterrun: Launcher) -> None:
    """The node is checked alone, and node 0 reports that it does not answer."""
    package = clusterrun.folder / "packages/torch/__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text(torch)

    first, other = two_nodes(clusterrun, {"PYTHONPATH": str(package.parent.parent)})

    assert (first.code, other.code) == (1, 1), (first, other)
    answers = [each["found"] for each in json.loads(first.out)["findings"] if each["advice"]]
    assert "rank 1: no answer; see its own output" in answers
    *_, alone = json.loads(other.out)["findings"]
    assert alone["found"] == f"not compared with other nodes: torch can't be used: {why}"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pilot_without_gpus(clusterrun: Launcher) -> None:
    """Checks without GPUs use gloo. The page has no user name and no host name."""
    job = clusterrun.command(
        "doctor", "--pilot", workers=None, environ={"CUDA_VISIBLE_DEVICES": ""}
    )
    done = job.ended(800)

    levels = {line.split("  ")[0] for line in done.out.splitlines()[2:]}
    assert done.code == 0, done
    assert levels == {"ok", "not tried"}
    for what in ("failed rank: the report", "SIGTERM: checkpoints", "SIGKILL: processes", "spare"):
        assert f"\nok         {what} " in done.out
    assert not re.search(rf"\b({re.escape(socket.gethostname())}|{getpass.getuser()})\b", done.out)
    assert job.left() == []
