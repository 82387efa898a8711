"""``clusterrun doctor`` on three hosts: healthy ones, and with planted faults."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from clusterrun.clients.doctor import this_machine

from tests.contract.launched import COMMAND, Ended, Launcher
from tests.hosts.host import Host
from tests.hosts.namespaces import ip
from tests.hosts.network import network
from tests.hosts.slurm import Slurm
from tests.hosts.ssh_hosts import SshHosts
from tests.waiting import SECONDS_TO_ACT

DEPENDS_ON_THE_MACHINE = (
    *("CPU load", "memory", "CPU quota", "CPU governor", "GPU", "NUMA node", "matrix product"),
    *("open files", "processes", "locked memory", "shared memory", "temporary files"),
    *("links", "all_reduce"),
)
"""Findings about the machine that all hosts share, which may be busy or have faults."""

HOOK = "type filter hook output priority 0;"

USE_CPU = "while True: pass"

SECONDS = 110.0
"""It takes 8 on a busy machine."""

Finding = Mapping[str, Any]


SLOW_CHECK = f"""\
import time
from {this_machine.__package__} import this_machine

check = this_machine.check_this_machine
def check_slowly(*arguments):
    time.sleep(16)
    return check(*arguments)
this_machine.check_this_machine = check_slowly
"""


class Doctors:
    """The command on several hosts, in one folder; node 0 prints the answer."""

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.before: dict[int, tuple[str, ...]] = {}
        """The words before the command, by host."""
        self.environ: dict[int, dict[str, str]] = {}
        """Additional variables, by host."""

    def ended(self) -> list[Ended]:
        """Run the command on all hosts; return the results."""
        jobs = [self._start(rank) for rank in range(len(self.hosts))]
        # Each imports torch three times: of eight on one machine, that takes most of the time.
        return [job.ended(SECONDS * max(1, len(jobs) // 4)) for job in jobs]

    def answer(self) -> tuple[list[int], list[Finding]]:
        """Return the exit codes, and the findings that are not "ok"."""
        ends = self.ended()
        assert ends[0].out.startswith("{"), ends
        assert {end.out for end in ends[1:]} == {""}
        answer = json.loads(ends[0].out)
        assert answer["nodes"] == [host.name for host in self.hosts]
        bad = [finding for finding in answer["findings"] if finding["level"] != "ok"]
        return [end.code for end in ends], bad

    def _start(self, rank: int) -> Any:
        options = (
            f"--nnodes={len(self.hosts)}",
            f"--master-addr={self.hosts[0].address}",
            f"--node-rank={rank}",
        )
        words = (*self.before.get(rank, ()), COMMAND, "doctor", *options, "--json")
        environ = {"TMPDIR": str(self.folder), **self.environ.get(rank, {})}
        return self.hosts[rank].start(*words, environ=environ, folder=self.folder)


@pytest.fixture
def doctors(hosts: tuple[Host, ...], tmp_path: Path) -> Doctors:
    """Return the command on three hosts."""
    return Doctors(hosts[:3], tmp_path)


def test_healthy_hosts_have_no_finding(doctors: Doctors) -> None:
    """Findings about the machine that they share do not count. No file is left."""
    _, bad = doctors.answer()

    planted = [each for each in bad if not each["what"].startswith(DEPENDS_ON_THE_MACHINE)]
    assert planted == []
    assert list(doctors.folder.iterdir()) == []


def test_different_torch_version_is_finding_of(doctors: Doctors) -> None:
    metadata = doctors.folder / "packages/torch-1.2.3.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n")
    doctors.environ[1] = {"PYTHONPATH": str(metadata.parent.parent)}

    codes, bad = doctors.answer()

    assert codes == [1, 1, 1]
    finding = finding_of(bad, "version of torch")
    assert (finding["level"], finding["nodes"]) == ("failure", ["n1"])
    assert "1.2.3 on n1" in finding["found"]


@pytest.mark.long
def test_broken_torch_is_reported_by_its_node(doctors: Doctors) -> None:
    """Node 0 compares the other nodes, and names the one that did not answer."""
    package = doctors.folder / "packages/torch/__init__.py"
    package.parent.mkdir(parents=True)
    package.write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    doctors.environ[1] = {"PYTHONPATH": str(package.parent.parent)}

    ends = doctors.ended()

    table, alone = (json.loads(ends[rank].out) for rank in (0, 1))
    assert [end.code for end in ends] == [1, 1, 1]
    assert (table["nodes"], ends[2].out) == (["n0", "n2"], "")
    assert (
        finding_of(table["findings"], "answers")["found"] == "rank 1: no answer; see its own output"
    )
    assert "ImportError: libcudart.so.12" in finding_of(alone["findings"], "comparison")["found"]


@pytest.mark.long
def test_slow_node_is_waited_for(doctors: Doctors) -> None:
    startup = doctors.folder / "packages/sitecustomize.py"
    startup.parent.mkdir()
    startup.write_text(SLOW_CHECK)
    doctors.environ[1] = {"PYTHONPATH": str(startup.parent)}

    codes, bad = doctors.answer()

    assert codes in ([0, 0, 0], [1, 1, 1])
    assert [each for each in bad if each["what"] == "answers"] == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_eight_nodes_finish_in_time(this_run: str, tmp_path: Path) -> None:
    """It takes 30 s on as many machines; here all eight share one."""
    with network(this_run, "eight", *(f"n{number}" for number in range(8))) as where:
        began = time.monotonic()
        _, bad = Doctors(where.hosts, tmp_path).answer()
        took = time.monotonic() - began
        where.end_all()

    planted = [each for each in bad if not each["what"].startswith(DEPENDS_ON_THE_MACHINE)]
    assert planted == []
    assert took < 400


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pilot_on_three_hosts(hosts: tuple[Host, ...], tmp_path: Path) -> None:
    """Node 0 prints the page of all. Node 1 is lost, and the third one replaces it."""
    where = ("--nnodes=3", f"--master-addr={hosts[0].address}")
    words = (COMMAND, "doctor", "--pilot", *where)
    jobs = [
        host.start(*words, f"--node-rank={rank}", environ={}, folder=tmp_path)
        for rank, host in enumerate(hosts[:3])
    ]

    page, *others = [job.ended(800) for job in jobs]

    assert [end.code for end in (page, *others)] == [0, 0, 0], page
    assert [end.out for end in others] == ["", ""]
    assert page.out.startswith("clusterrun pilot: 0 failed")
    for rank, code in enumerate((0, 137, 0)):
        assert re.search(rf"\nok +node {rank}: spare +exit code {code},", page.out), page.out
    assert not re.search(r"\bn[0-2]\b|10\.77\.", page.out)


@pytest.mark.long
def test_doctor_over_ssh_prints_one_table(ssh: SshHosts, clusterrun: Launcher) -> None:
    """Its exit code is 1 if there is a fault."""
    words = ("doctor", "--json", *ssh.options())
    healthy = clusterrun.command(*words, workers=None, around=ssh.client.around).ended(SECONDS)
    fault = ("--env", "GLOO_SOCKET_IFNAME=nosuch0")
    bad = clusterrun.command(*words, *fault, workers=None, around=ssh.client.around).ended(SECONDS)

    assert json.loads(healthy.out)["nodes"] == ["n0", "n1", "n2"]
    assert bad.code == 1
    assert finding_of(json.loads(bad.out)["findings"], "GLOO")["nodes"] == ["n0", "n1", "n2"]
    assert ssh.left(10) == []


@pytest.mark.long
@pytest.mark.parametrize("tasks", ["1", "2"])
def test_doctor_in_slurm_step_checks_each_node_once(slurm: Slurm, tasks: str) -> None:
    words = ("-N2", f"--ntasks-per-node={tasks}", COMMAND, "doctor", "--json")
    # Each task imports torch, twice, on whatever CPUs there are.
    done = slurm.srun(*words, seconds=4 * SECONDS_TO_ACT)

    assert json.loads(done.out)["nodes"] == ["n0", "n1"], done


def finding_of(bad: Sequence[Finding], what: str, found: str = "") -> Finding:
    """Return the finding on ``what``, with this text if there are several."""
    findings = [it for it in bad if it["what"].startswith(what) and found in ("", it["found"])]
    assert findings, bad
    return findings[0]


class Fault(NamedTuple):
    """A fault of node 1, and what doctor finds; {folder} is the working folder."""

    what: str
    found: str
    before: tuple[str, ...] = ()
    environ: Mapping[str, str] = MappingProxyType({})


def after(script: str) -> tuple[str, ...]:
    """Return the words before a command that run a script first, with their own mounts."""
    return ("unshare", "--mount", "sh", "-ec", f'{script}\nexec "$@"', "sh")


FAULTS_OF_ONE_NODE = {
    "full disk": Fault(
        "temporary files",
        "n1: No space left on device",
        after("mount -t tmpfs -o size=256k none {folder}/full"),
        {"TMPDIR": "{folder}/full"},
    ),
    "low limit": Fault("open files", "n1: 256", ("prlimit", "--nofile=256:2048")),
    "working folder is not shared": Fault(
        "shared folder",
        "n1 has a different one from n0",
        after("mount -t tmpfs none {folder}; cd {folder}"),
    ),
    "unknown interface": Fault(
        "GLOO_SOCKET_IFNAME", "n1: nosuch0", environ={"GLOO_SOCKET_IFNAME": "nosuch0"}
    ),
    "unreachable interface": Fault(
        "GLOO_SOCKET_IFNAME",
        "n1: lo has no address that other nodes know",
        environ={"GLOO_SOCKET_IFNAME": "lo"},
    ),
    "small shared memory": Fault(
        "shared memory",
        "n1: 64 MiB, 64 MiB free",
        after("mount -t tmpfs -o size=64m none /dev/shm"),
    ),
}


SEEN_TOGETHER = [
    ("full disk", "low limit", "unknown interface", "small shared memory"),
    ("working folder is not shared", "unreachable interface"),
]


@pytest.mark.long
class TestPlantedFaults:
    """Each fault is reported with its node; most are on node 1."""

    @pytest.mark.needs("nft")
    def test_ports_blocked_in_one_direction(self, doctors: Doctors) -> None:
        drop = f"ip daddr {doctors.hosts[2].address} tcp flags & (syn|ack) == syn drop;"
        rules = f"add table ip t; add chain ip t o {{ {HOOK} }}; add rule ip t o {drop}"
        done = doctors.hosts[1].run("nft", rules)
        assert done.code == 0, done
        try:
            codes, bad = doctors.answer()
        finally:
            doctors.hosts[1].run("nft", "flush ruleset")

        finding = finding_of(bad, "ports")
        assert codes == [1, 1, 1]
        assert finding["found"] == "n1 can't reach n2 at 10.77.0.4: timed out; n2 reaches it"

    def test_unreachable_second_address(self, doctors: Doctors) -> None:
        with second_address(doctors.hosts[2]):
            codes, bad = doctors.answer()

        finding = finding_of(bad, "addresses")
        assert codes == [0, 0, 0], bad
        assert finding["found"].startswith("no node reaches n2 at 10.99.0.1: ")

    def test_name_that_resolves_to_wrong_address(self, doctors: Doctors) -> None:
        names = "127.0.0.1 localhost\n10.77.0.2 n0\n10.77.0.3 n1\n10.77.0.99 n2\n"
        doctors.hosts[1].set_hosts_file(names)

        _, bad = doctors.answer()

        assert finding_of(bad, "names")["found"] == "n1 resolves n2 to 10.77.0.99"

    @pytest.mark.needs("tc")
    def test_slow_link(self, doctors: Doctors) -> None:
        shape = ("qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "100mbit")
        done = doctors.hosts[1].run("tc", *shape, "burst", "64k", "latency", "400ms")
        assert done.code == 0, done
        try:
            _, bad = doctors.answer()
        finally:
            doctors.hosts[1].run("tc", "qdisc", "del", "dev", "eth0", "root")

        finding = finding_of(bad, "links")
        assert finding["nodes"] == ["n1"]
        assert finding["found"].startswith("n1: ")

    @pytest.mark.parametrize("names", SEEN_TOGETHER)
    def test_faults_of_one_node(self, doctors: Doctors, names: tuple[str, ...]) -> None:
        faults = [FAULTS_OF_ONE_NODE[name] for name in names]
        folder = doctors.folder
        (folder / "full").mkdir()
        before = [word for fault in faults for word in fault.before]
        doctors.before[1] = tuple(word.format(folder=folder) for word in before)
        doctors.environ[1] = {
            name: value.format(folder=folder)
            for fault in faults
            for name, value in fault.environ.items()
        }

        codes, bad = doctors.answer()

        assert codes == [1, 1, 1]
        for fault in faults:
            assert finding_of(bad, fault.what, fault.found), bad

    def test_wrong_clock_of_node_zero(self, doctors: Doctors) -> None:
        shim = doctors.folder / "shim/sitecustomize.py"
        shim.parent.mkdir()
        shim.write_text("import time\nreal = time.time\ntime.time = lambda: real() - 3600\n")
        doctors.environ[0] = {"PYTHONPATH": str(shim.parent)}

        _, bad = doctors.answer()

        found = re.fullmatch(
            r"n0 is ([\d.]+) s behind the others", finding_of(bad, "clock")["found"]
        )
        assert found, bad
        assert 3590 < float(found[1]) < 3610

    def test_busy_cpus(self, doctors: Doctors) -> None:
        cpu = str(min(os.sched_getaffinity(0)))
        doctors.before[1] = ("taskset", "-c", cpu)
        spinning = subprocess.Popen(["taskset", "-c", cpu, sys.executable, "-c", USE_CPU])
        try:
            _, bad = doctors.answer()
        finally:
            spinning.kill()
            spinning.wait()

        busy = [finding for finding in bad if finding["what"] == "CPU load"]
        assert any("n1" in finding["nodes"] for finding in busy)


@contextmanager
def second_address(host: Host) -> Iterator[None]:
    ip("-n", host.namespace, "address", "add", "10.99.0.1/24", "dev", "eth0")
    try:
        yield
    finally:
        ip("-n", host.namespace, "address", "del", "10.99.0.1/24", "dev", "eth0")
