"""``clusterrun doctor --pilot``: run small jobs on a user's GPUs, and check how each of them ends.

Each node runs the same command, which starts its agent for one job after the other. Node 0 prints one
report, without names of hosts and users, that can be sent to the authors.
"""

import csv
import getpass
import json
import os
import platform
import re
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from clusterrun.bounds import counted
from clusterrun.cli.printing import complain, print_text
from clusterrun.clients.doctor.doctor import connection_options, options_from_sources
from clusterrun.clients.doctor.this_machine import version_of
from clusterrun.clients.launches import CLUSTERRUN
from clusterrun.cpuset import CpuSet, own_cpus
from clusterrun.errors import ExitCode, UsageError, exit_code_of_signal
from clusterrun.job.resolve import Resolved, resolve
from clusterrun.job.sources import CommandLine, typed
from clusterrun.job.this_process import this_process
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.processes import TimeLimitedChild, set_parent_death_signal
from clusterrun.report.tables import aligned

PROGRAM = str(Path(__file__).with_name("pilot_program.py"))
FOLDER_VARIABLE = "_CLUSTERRUN_PILOT"

OK, FAILED, NOT_TRIED = "ok", "FAILED", "not tried"

SECONDS_PER_JOB = 240.0
SECONDS_TO_CLEAN_UP = 10.0
"""How long ranks and their GPU memory may outlive their job."""
SECONDS_TO_GATHER = 60.0
"""How long this node retries if the others are still in the job before."""
MAX_MEMORY_GROWTH = 64
"""MiB by which the memory in use on a GPU may grow over a job, because others may use the GPU."""


class ReportLine(NamedTuple):
    """A line of the report."""

    level: str
    what: str
    found: str


class PilotJobResult(NamedTuple):
    """How a job has ended on this node."""

    code: int
    """The exit code of the command; that of SIGKILL if it took too long."""
    printed: str
    ready: list[dict[str, Any]]
    """The facts of this node's ranks in the first attempt."""
    seconds: float
    """From the signal, or else from the start, to the end of the command."""
    at: float
    """When it ended, in seconds since the epoch."""
    folder: Path


def run_pilot(line: CommandLine, environ: Mapping[str, str], called: str) -> int:
    """Run the jobs, and print the report; return 1 if a check has failed.

    Raises:
        UsageError: the described job is impossible.

    """
    found, variables = options_from_sources(line, environ)
    machine = inspect(Tree(ROOT), variables, own_cpus(), "")
    counts = typed(nproc_per_node=str(len(machine.visible) or 2))
    job = CommandLine({**counts, **connection_options(found)}, (PROGRAM,))
    resolved = resolve(job, variables, this_process(called))
    if resolved.over_ssh is not None:
        raise UsageError(
            "the pilot sends signals to the clusterrun command of each node, but with ssh there is"
            " only one command",
            "run it on each node:\n  clusterrun doctor --pilot --nnodes 2 --master-addr ADDRESS",
        )
    with TemporaryDirectory(prefix="clusterrun-pilot-") as folder:
        pilot = Pilot(job, variables, machine, resolved, Path(folder))
        return pilot.run()


class Pilot:
    """Runs this node's agents of the jobs one after the other, and reports."""

    def __init__(
        self,
        job: CommandLine,
        variables: Mapping[str, str],
        machine: Machine,
        resolved: Resolved,
        folder: Path,
    ) -> None:
        self._job = job
        self._variables = variables
        self._machine = machine
        self._nodes = resolved.job.agents
        self._folder = folder
        self._rows: list[ReportLine] = []
        self._memory_before = gpu_memory()

    def run(self) -> int:
        """Run all jobs, and print the report; return 1 if a check has failed."""
        self._rows += describe_machine(self._machine)
        for what, step in (
            ("train, all_reduce", self._check_training),
            ("a failed rank", self._check_failed_rank),
            ("SIGTERM", self._check_sigterm),
            ("SIGKILL", self._check_sigkill),
            ("a spare", self._check_spare),
        ):
            complain(f"clusterrun: pilot: {what}")
            self._rows += step()
        reports = self._gather_reports()
        rows = [
            ReportLine(level, f"node {number}: {what}" if len(reports) > 1 else what, found)
            for number, report in enumerate(reports)
            for level, what, found in report["rows"]
        ]
        if reports:
            names = {name for report in reports for name in report["names"]}
            print_text(anonymized(report_text(rows), names))
        else:
            complain("clusterrun: pilot: node 0 prints the report")
        return int(any(row.level == FAILED for row in (*rows, *self._rows)))

    def _check_training(self) -> Iterator[ReportLine]:
        planned = self._dry_run_workers()
        ended = self._run_job("train")
        ranks = [read(each) for each in sorted(ended.folder.glob("trained-*"))]
        yield from self._check_exit_code("train", ended, 0)
        if not ranks:
            return
        backend, size = ranks[0]["backend"], ranks[0]["size"]
        yield check("ranks", backend == "nccl" or not self._machine.visible, f"{size} by {backend}")
        if backend != "nccl":
            yield ReportLine(
                NOT_TRIED, "NCCL", ("no GPU that torch can use on this node: gloo instead")
            )
        elif size == 1:
            yield ReportLine(NOT_TRIED, "NCCL between ranks", "there is one GPU")
        versions = f"torch {ranks[0]['torch']}, NCCL {ranks[0]['nccl'] or 'none'}"
        yield ReportLine(OK, "versions of ranks", versions)
        good = all(each["has_learnt"] and each["weights_agree"] for each in ranks)
        yield check("DDP", good, "all ranks train, and end with the same weights")
        fresh = all(each["fresh"] for each in ranks)
        yield check("CUDA begins in the rank", fresh, str(fresh).lower())
        yield from compare_with_plan(planned, ranks)
        sums = [
            f"{size >> 20} MiB {size / seconds / 1e9:.1f} GB/s"
            for size, seconds in ranks[0]["sums"]
        ]
        yield ReportLine(OK, f"all_reduce ({backend})", ", ".join(sums))
        yield from self._check_leftovers("train", ranks)

    def _check_failed_rank(self) -> Iterator[ReportLine]:
        ended = self._run_job("fail")
        yield from self._check_exit_code("failed rank", ended, 1)
        last = f"rank {ended.ready[0]['size'] - 1}" if ended.ready else "rank"
        named = last in ended.printed and "planned by the pilot" in ended.printed
        yield check("failed rank: the report", named, f"names {last} and its exception")
        if (failed := ended.folder / "failed").exists():
            took = f"{ended.at - read(failed):.1f} s after the failure"
            yield ReportLine(OK, "failed rank: the end of this node", took)
        yield from self._check_leftovers("failed rank", ended.ready)

    def _check_sigterm(self) -> Iterator[ReportLine]:
        ended = self._run_job("save", signal.SIGTERM)
        yield from self._check_exit_code("SIGTERM", ended, exit_code_of_signal(signal.SIGTERM))
        saved = [read(each) for each in ended.folder.glob("saved-*")]
        good = len(saved) == len(ended.ready) > 0 and len(set(saved)) == 1
        yield check(
            "SIGTERM: checkpoints", good, f"{len(saved)} of {len(ended.ready)} ranks, one step"
        )
        yield from self._check_leftovers("SIGTERM", ended.ready)

    def _check_sigkill(self) -> Iterator[ReportLine]:
        ended = self._run_job("kill", signal.SIGKILL)
        if ended.ready and ended.ready[0]["node"] != 0:
            yield from self._check_exit_code("SIGKILL on node 0", ended, ExitCode.NODE_LOST)
        else:
            yield from self._check_exit_code("SIGKILL", ended, exit_code_of_signal(signal.SIGKILL))
        yield from self._check_leftovers("SIGKILL", ended.ready)

    def _check_spare(self) -> Iterator[ReportLine]:
        """Kill the agent of a node, which a spare replaces; with one or two nodes, use three local agents."""
        if self._nodes > 2:
            nodes = str(self._nodes - 1)
            ended = self._run_job("spare", signal.SIGKILL, of=1, nnodes=nodes, spares="1")
            ready = ended.ready
            killed = bool(ready) and ready[0]["node"] == 1
            expected = exit_code_of_signal(signal.SIGKILL) if killed else 0
            yield from self._check_exit_code("spare", ended, expected)
        else:
            ready = yield from self._check_spare_on_one_node()
        yield from self._check_leftovers("spare", ready)

    def _check_spare_on_one_node(self) -> Generator[ReportLine, None, list[dict[str, Any]]]:
        gpus = len(self._machine.visible)
        words = [] if gpus >= 3 else ["gloo"]
        own = {"nnodes": "2", "spares": "1", "cluster": "none", "nproc_per_node": "1"}
        rendezvous = {"master_addr": "127.0.0.1", "master_port": free_port()}
        line = CommandLine(
            typed(**own, **rendezvous, rdzv_timeout="120"), (PROGRAM, "spare", *words)
        )
        started = []
        for rank in range(3):
            more = {"node_rank": str(rank), **({"devices": str(rank)} if gpus >= 3 else {})}
            if 0 < gpus < 3:
                more["gpus_per_worker"] = "0"
            folder = self._new_folder(f"spare-{rank}")
            started.append((self._start(line.with_options(typed(**more)), folder), folder))
        until = time.monotonic() + SECONDS_PER_JOB
        ready: list[dict[str, Any]] = []
        while len(ready) < 2 and time.monotonic() < until:
            time.sleep(0.05)
            ready = [each for _, folder in started for each in ready_in(folder)]
        began = time.monotonic()
        for process, folder in started:
            if any(each["node"] == 1 for each in ready_in(folder)):
                process.kill()
        codes = [wait_or_kill(process, until - time.monotonic()) for process, _ in started]
        took = time.monotonic() - began
        good = sorted(codes) == [0, 0, exit_code_of_signal(signal.SIGKILL)]
        second = [each for _, folder in started for each in ready_in(folder, 1)]
        again = good and len(second) == 2
        where = f"three agents on this node, by {words[0] if words else 'nccl'}"
        yield check("spare", again, f"takes over, and the job ends {took:.1f} s later ({where})")
        if not again:
            yield from (last_lines("spare", folder) for _, folder in started)
        return [*ready, *second]

    def _dry_run_workers(self) -> list[dict[str, Any]]:
        """Return the workers in the plan of a dry run; [] if this node does not know its rank yet."""
        options = {**self._job.options, **typed(dry_run="true", json="true")}
        line = CommandLine(options, (PROGRAM, "train"))
        answer = output_in_time([*CLUSTERRUN, *line.argv()], SECONDS_PER_JOB, self._variables)
        return list(json.loads(answer)["workers"]) if answer else []

    def _gather_reports(self) -> list[dict[str, Any]]:
        """Return the reports of all nodes on node 0, [] on others; only the own one if the job fails."""
        own = {"rows": self._rows, "names": sorted(private_names())}
        if self._nodes == 1:
            return [own]
        folder = self._new_folder("collect")
        (folder / "report.json").write_text(json.dumps(own))
        until = time.monotonic() + SECONDS_TO_GATHER
        while True:
            code = wait_or_kill(self._start(self._job_line("collect"), folder), SECONDS_PER_JOB)
            # A node that was killed may be here while the others are still in the job before.
            if code == 0 or time.monotonic() > until:
                break
            time.sleep(1)
        if (reports := folder / "reports.json").exists():
            return list(read(reports))
        return [] if code == 0 else [own]

    def _check_exit_code(
        self, what: str, ended: PilotJobResult, expected: int
    ) -> Iterator[ReportLine]:
        good = ended.code == expected
        found = f"exit code {ended.code}, after {ended.seconds:.1f} s"
        yield check(what, good, found if good else f"{found}, and not {expected}")
        if not good:
            yield last_lines(what, ended.folder)

    def _check_leftovers(
        self, what: str, ranks: Sequence[Mapping[str, Any]]
    ) -> Iterator[ReportLine]:
        """Wait until no process and no GPU memory of a job is left on this node."""
        pids = [each[name] for each in ranks for name in ("pid", "loader") if name in each]
        began = time.monotonic()
        while (
            left := list(filter(is_alive, pids))
        ) and time.monotonic() < began + SECONDS_TO_CLEAN_UP:
            time.sleep(0.05)
        took = time.monotonic() - began
        yield check(
            f"{what}: processes", not left, f"{len(left)} of {len(pids)} after {took:.1f} s"
        )
        if not self._memory_before:
            return
        while (more := self._memory_growth()) > MAX_MEMORY_GROWTH:
            if time.monotonic() > began + SECONDS_TO_CLEAN_UP:
                break
            time.sleep(0.2)
        found = f"{max(0, more)} MiB more than before, after {time.monotonic() - began:.1f} s"
        yield check(f"{what}: GPU memory", more <= MAX_MEMORY_GROWTH, found)

    def _memory_growth(self) -> int:
        pairs = zip(gpu_memory(), self._memory_before, strict=False)
        return max((now - before for now, before in pairs), default=0)

    def _job_line(self, scenario: str, **more: str) -> CommandLine:
        named = typed(run_id=f"pilot-{scenario}", **more)
        return CommandLine({**self._job.options, **named}, (PROGRAM, scenario))

    def _run_job(self, scenario: str, number: int = 0, of: int = 0, **more: str) -> PilotJobResult:
        """Run a job on this node; once ranks are ready, send signal ``number`` to the agent of node ``of``."""
        folder = self._new_folder(scenario)
        process = self._start(self._job_line(scenario, **more), folder)
        began = time.monotonic()
        until = began + SECONDS_PER_JOB
        while number and process.poll() is None and time.monotonic() < until:
            ready = ready_in(folder)
            if ready and len(ready) == ready[0]["local_size"]:
                began = time.monotonic()
                if ready[0]["node"] == of:
                    process.send_signal(number)
                break
            time.sleep(0.05)
        code = wait_or_kill(process, until - time.monotonic())
        seconds = time.monotonic() - began
        printed = (folder / "printed").read_text(errors="replace")
        return PilotJobResult(code, printed, ready_in(folder), seconds, time.time(), folder)

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir()
        return folder

    def _start(self, line: CommandLine, folder: Path) -> "subprocess.Popen[bytes]":
        parent = os.getpid()
        with (folder / "printed").open("wb") as file:
            return subprocess.Popen(
                [*CLUSTERRUN, *line.argv()],
                env={**self._variables, FOLDER_VARIABLE: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=lambda: set_parent_death_signal(parent, signal.SIGTERM),  # noqa: PLW1509 - this process has one thread
            )


# Checks.


def describe_machine(machine: Machine) -> Iterator[ReportLine]:
    """Describe this machine, and check that nvidia-smi lists the same GPUs."""
    release = f"Linux {platform.release()}, Python {platform.python_version()}"
    yield ReportLine(OK, "software", f"clusterrun {version_of('clusterrun')}, {release}")
    cpus = f"{counted(len(machine.allowed), 'CPU')}, {counted(len(machine.nodes), 'NUMA node')}"
    wholes = [gpu for gpu in machine.gpus if not gpu.parent]
    models = sorted({gpu.model or gpu.vendor for gpu in wholes})
    gpus = f"{counted(len(wholes), 'GPU')} ({', '.join(models)})" if models else "no GPU"
    yield ReportLine(OK, "machine", f"{cpus}, {gpus}, {len(machine.visible)} visible")
    driver = Tree(ROOT).text("sys/module/nvidia/version")
    yield ReportLine(OK, "driver", driver or "none by NVIDIA")
    for gpu in wholes:
        yield ReportLine(
            OK, f"GPU {gpu.index}", f"NUMA node {gpu.numa_node} ({gpu.node_source or 'unknown'})"
        )
    if (listed := nvidia_smi("pci.bus_id,uuid,name")) is None:
        yield ReportLine(
            NOT_TRIED, "GPUs, and their memory after each job", "nvidia-smi shows none on this node"
        )
        return
    nvidia = [gpu for gpu in wholes if gpu.vendor == "nvidia"]
    ours = sorted((short_pci_address(gpu.bdf), gpu.uuid, gpu.model) for gpu in nvidia)
    theirs = sorted((short_pci_address(address), uuid, name) for address, uuid, name in listed)
    yield check("GPUs of nvidia-smi", ours == theirs, f"{len(theirs)}, and {len(ours)} found")


def compare_with_plan(
    planned: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]]
) -> Iterator[ReportLine]:
    """Check that each rank has the CPUs and the GPU that the dry run has planned."""
    if not planned:
        yield ReportLine(NOT_TRIED, "binding", "the dry run does not know this node's rank")
        return
    allowed = str(own_cpus())
    by_rank = {each["local_rank"]: each for each in planned}
    pairs = [(by_rank[each["local_rank"]], each) for each in ranks]
    bound = [str(plan["cpus"] or allowed) == str(CpuSet(rank["cpus"])) for plan, rank in pairs]
    each = "; ".join(str(CpuSet(rank["cpus"])) for _, rank in pairs)
    yield check("binding: CPUs of ranks", all(bound), each)
    uuids = [
        (gpu.get("uuid", ""), rank["uuid"]) for plan, rank in pairs for gpu in plan["gpus"][:1]
    ]
    if uuids:
        same = all(bare_uuid(ours) == bare_uuid(theirs) for ours, theirs in uuids)
        yield check(
            "binding: GPUs of ranks", same, f"{len(uuids)} as planned" if same else "differ"
        )


def nvidia_smi(query: str, seconds: float = 60.0) -> list[list[str]] | None:
    """Return a row for each GPU; None if nvidia-smi is missing or fails, or hangs in the kernel."""
    words = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    answer = output_in_time(words, seconds)
    return list(csv.reader(answer.splitlines(), skipinitialspace=True)) or None


def gpu_memory() -> list[int]:
    """Return the MiB in use on each GPU that shows it."""
    rows = nvidia_smi("memory.used") or []
    return [int(used) for used, *_ in rows if used.isdecimal()]


def short_pci_address(address: str) -> str:
    """Return a PCI address with a domain of four digits, where nvidia-smi prints eight."""
    return address.lower()[-12:]


def bare_uuid(uuid: str) -> str:
    """Return a UUID without its prefix, as torch prints it."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


# Processes and files.


def output_in_time(
    words: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None
) -> str:
    """Return what a command prints; "" if it is missing or fails, or takes longer."""
    null = subprocess.DEVNULL
    run = TimeLimitedChild(
        lambda: subprocess.check_output(words, stderr=null, env=environ), seconds
    )
    return run.wait().decode()


def wait_or_kill(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    """Return the exit code of a command, which is killed after ``seconds``."""
    try:
        code = process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return exit_code_of_signal(-code) if code < 0 else code


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def ready_in(folder: Path, attempt: int = 0) -> list[dict[str, Any]]:
    """Return the facts of the ranks of an attempt, by rank."""
    found = [read(file) for file in folder.glob(f"ready-{attempt}-*")]
    return sorted(found, key=lambda each: int(each["rank"]))


def read(file: Path) -> Any:
    return json.loads(file.read_text())


# The report.


def check(what: str, is_good: bool, found: str) -> ReportLine:  # noqa: FBT001 - the row's own value
    return ReportLine(OK if is_good else FAILED, what, found)


def last_lines(what: str, folder: Path) -> ReportLine:
    """Return the end of a job's output."""
    lines = (folder / "printed").read_text(errors="replace").split("\n")
    return ReportLine(FAILED, f"{what}: last lines", " | ".join(filter(None, lines))[-1500:])


def report_text(rows: Sequence[ReportLine]) -> str:
    failed = sum(row.level == FAILED for row in rows)
    head = f"clusterrun pilot: {failed} failed, {sum(row.level == NOT_TRIED for row in rows)} not tried"
    return "\n".join([head, "", *aligned(rows)])


def private_names() -> set[str]:
    """Return the names of this host and user, and folders that may contain them."""
    host = socket.gethostname()
    names = {host, host.partition(".")[0], str(Path.cwd())}
    for name in (getpass.getuser, Path.home):
        # A user id without an entry in passwd, and without USER or HOME (docker run --user).
        with suppress(KeyError, OSError, RuntimeError):
            names.add(str(name()))
    return names


def anonymized(text: str, names: Iterable[str]) -> str:
    """Return a text without these names and without IPv4 addresses."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "...", text)
    return re.sub(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", "ADDRESS", text)
