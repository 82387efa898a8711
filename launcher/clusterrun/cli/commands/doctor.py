"""``clusterrun doctor``: whether this machine is fit for a training job, and what to do if not."""

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.cli.json_printing import print_json
from clusterrun.cli.printing import print_text
from clusterrun.domain.cpuset import CpuSet
from clusterrun.errors import ExitCode
from clusterrun.machine.gpus.faults import broken_gpus
from clusterrun.machine.health import hardware, limits, network, storage
from clusterrun.machine.health.finding import Finding, Health, Level
from clusterrun.machine.host_facts import SHARED_MEMORY
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree
from clusterrun.report.worker_table import aligned
from clusterrun.sources.options.rows.files import LOG_DIR
from clusterrun.sources.settings import CommandLine
from clusterrun.workers.time_limited import TimeLimited

if TYPE_CHECKING:
    import psutil

ROOT = Path("/")

FAULTY = 1
"""The exit code if something fails: doctor itself has not."""

SECONDS_TO_MEASURE = 0.5
SECONDS_TO_RESOLVE = 5.0
SECONDS_TO_WRITE = 10.0
MOST_BUSY = 3


def execute(line: CommandLine, environ: Mapping[str, str], _called: str) -> int:
    """Print what was found, and below the table what to do; return 1 if a usual job would fail."""
    health = Health(socket.gethostname(), tuple(_findings(line, environ)))
    if "json" in line.flags:
        print_json(health)
    else:
        print_text(_table(health.findings))
    return FAULTY if health.failures else ExitCode.SUCCESS


def _findings(line: CommandLine, environ: Mapping[str, str]) -> Iterator[Finding]:
    tree = Tree(ROOT)
    machine = inspect(ROOT, environ, CpuSet(os.sched_getaffinity(0)), "")
    yield storage.check_shared_memory(Path(SHARED_MEMORY))
    yield from _folders(line, environ)
    yield from limits.check_limits(tree)
    yield from limits.check_memory(tree)
    yield from limits.check_quota(machine)
    own = _own_addresses()
    host = socket.gethostname()
    resolved = TimeLimited(SECONDS_TO_RESOLVE).run(partial(_addresses_of, host))
    yield from network.check_name(host, resolved, own)
    yield from network.check_interfaces(environ, tuple(own))
    yield from hardware.check_governor(tree)
    yield from hardware.check_load(*_load(machine.allowed))
    yield from hardware.check_gpus(tree, machine, _torch())
    if any(gpu.vendor == "nvidia" for gpu in machine.gpus):
        yield from hardware.check_faults(broken_gpus())


def _folders(line: CommandLine, environ: Mapping[str, str]) -> Sequence[Finding]:
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - what jobs use
    logs = Path(str(line.flags[LOG_DIR.name])).absolute() if LOG_DIR.name in line.flags else None
    check = partial(_all_folders, temporary, logs)
    hangs = Finding(Level.FAILURE, "folders", "do not answer", "check the network file system")
    return TimeLimited(SECONDS_TO_WRITE).run(check) or (hangs,)


def _all_folders(temporary: Path, logs: Path | None) -> tuple[Finding, ...]:
    return tuple(storage.check_folders(temporary, logs))


def _addresses_of(host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _own_addresses() -> dict[str, list[str]]:
    import psutil

    return {
        name: [each.address for each in known if each.family in {socket.AF_INET, socket.AF_INET6}]
        for name, known in psutil.net_if_addrs().items()
    }


def _load(allowed: CpuSet) -> tuple[float, list[str]]:
    """Return which part of the allowed CPUs is in use, and the processes that use most."""
    import psutil

    before = _cpu_times()
    use = psutil.cpu_percent(SECONDS_TO_MEASURE, percpu=True)
    ours = [percent for cpu, percent in enumerate(use) if cpu in allowed] or use
    after = _cpu_times()
    used = {process: after[process] - before.get(process, 0.0) for process in after}
    busiest = sorted(used, key=lambda process: -used[process])[:MOST_BUSY]
    return sum(ours) / len(ours) / 100, [_named(process) for process in busiest]


def _cpu_times() -> "dict[psutil.Process, float]":
    import psutil

    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process] = times.user + times.system
    return found


def _named(process: "psutil.Process") -> str:
    import psutil

    with suppress(psutil.Error):
        return f"{process.name()} ({process.pid})"
    return f"pid {process.pid}"


def _torch() -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("torch")
    return ""


def _table(findings: Sequence[Finding]) -> str:
    rows = [(each.level.value, each.what, each.found) for each in findings]
    bad = [each for each in findings if each.advice]
    advice = [f"{each.level.value}: {each.what}: {each.advice}" for each in bad]
    return "\n".join([*aligned(rows), *([""] if advice else []), *advice])
