"""``clusterrun doctor`` with one fault at a time, through the installed command."""

import getpass
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.commands.run_commands import run_command
from tests.contract.launched import Ended, Launcher, node_options

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
    ("what", "advice", "around", "variables"),
    [
        ("NCCL_SOCKET_IFNAME", "give one of lo", (), {"NCCL_SOCKET_IFNAME": "nosuch"}),
        ("GLOO_SOCKET_IFNAME", "give one of lo", (), {"GLOO_SOCKET_IFNAME": "nosuch0"}),
        pytest.param(
            *("open files", "ulimit -n 2048", ("prlimit", "--nofile=256:2048"), {}),
            marks=pytest.mark.needs("prlimit"),
        ),
    ],
)
def test_failure_has_advice(
    what: str, advice: str, around: Sequence[str], variables: dict[str, str]
) -> None:
    code, found = doctor(*around, **variables)

    assert (code, found[what]["level"]) == (1, "failure")
    assert advice in found[what]["advice"]


HOSTS = "echo 10.254.9.9 node7 >FOLDER/hosts; mount --bind FOLDER/hosts /etc/hosts; hostname node7"


@pytest.mark.needs("root", "unshare")
@pytest.mark.parametrize(
    ("what", "text", "namespace", "script"),
    [
        (
            *("shared memory (/dev/shm)", "64 MiB, 64 MiB free"),
            *("--mount", "mount -t tmpfs -o size=64m none /dev/shm"),
        ),
        (
            *("temporary files (FOLDER)", "No space left on device"),
            *("--mount", "mount -t tmpfs -o size=256k none FOLDER"),
        ),
        ("host name (node7)", "10.254.9.9", "--uts", HOSTS),
        (
            "loopback",
            "this machine can't reach itself at 127.0.0.1: Network is unreachable",
            *("--net", ""),
        ),
    ],
)
def test_failure_in_a_namespace(
    what: str, text: str, namespace: str, script: str, tmp_path: Path
) -> None:
    """The script changes the namespace before the command. FOLDER is TMPDIR."""
    folder = str(tmp_path)
    around = ("unshare", "--mount", namespace, "sh", "-ec", f'{script}\nexec "$@"', "sh")
    code, found = doctor(*(word.replace("FOLDER", folder) for word in around), TMPDIR=folder)

    finding = found[what.replace("FOLDER", folder)]
    assert (code, finding["level"], finding["found"]) == (1, "failure", text)


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
    job = clusterrun.command("doctor", *node_options()[0])
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
    """Check two nodes, which are this machine; ``second`` are variables of node 1 only."""
    # The command of --check runs doctor, which must not run itself.
    checks = {"CLUSTERRUN_CHECK": "clusterrun doctor"}
    jobs = [
        clusterrun.command(
            "doctor", *options, "--json", environ={**checks, **(second if rank else {})}
        )
        for rank, options in enumerate(node_options())
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
