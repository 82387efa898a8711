"""What is wrong with this machine for a training job, and the facts that nodes compare."""

import os
import platform
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from clusterrun.domain.bounds import as_line
from clusterrun.domain.cpuset import CpuSet
from clusterrun.machine.gpus.gpus import NVIDIA_FILES
from clusterrun.machine.gpus.nvml import broken_gpus, slow_gpus
from clusterrun.machine.health import hardware, limits, network, storage
from clusterrun.machine.health.finding import Finding, Level
from clusterrun.machine.host_facts import SHARED_MEMORY
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree
from clusterrun.processes import TimeLimited

if TYPE_CHECKING:
    import psutil

ROOT = Path("/")

SECONDS_TO_MEASURE = 0.5
SECONDS_TO_RESOLVE = 5.0
SECONDS_TO_WRITE = 10.0
MOST_BUSY = 3


def check_this_machine(log_dir: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is well and what is not; ``log_dir`` is "" if there are no log files."""
    tree = Tree(ROOT)
    machine = inspect(tree, environ, CpuSet(os.sched_getaffinity(0)), "")
    yield storage.check_shared_memory(Path(SHARED_MEMORY))
    yield from _folders(log_dir, environ)
    yield from limits.check_limits(tree)
    yield from limits.check_memory(tree)
    yield from limits.check_quota(machine)
    own = own_addresses()
    host = socket.gethostname()
    resolved = TimeLimited(SECONDS_TO_RESOLVE).run(partial(addresses_of, host))
    yield from network.check_name(host, resolved, own)
    yield from network.check_interfaces(environ, tuple(own))
    yield from hardware.check_governor(tree)
    yield from hardware.check_load(*_load(machine.allowed))
    yield from hardware.check_gpus(tree, machine, version_of("torch"))
    # A driver that hangs may show no GPU at all.
    if any(map(tree.exists, NVIDIA_FILES)) or any(gpu.vendor == "nvidia" for gpu in machine.gpus):
        yield from hardware.check_faults(broken_gpus())
        yield from hardware.check_slowdowns(slow_gpus())


def versions() -> dict[str, str]:
    """Return the versions that all nodes should have in common, of what is installed."""
    found = {
        "clusterrun": version_of("clusterrun"),
        "Python": platform.python_version(),
        "torch": version_of("torch"),
        "driver": Tree(ROOT).text("sys/module/nvidia/version"),
    }
    return {what: version for what, version in found.items() if version}


def version_of(package: str) -> str:
    """Return its version; "" if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def own_addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface."""
    import psutil

    return {
        name: [each.address for each in known if each.family in {socket.AF_INET, socket.AF_INET6}]
        for name, known in psutil.net_if_addrs().items()
    }


def addresses_of(host: str) -> tuple[str, ...]:
    """Return what a name resolves to; () if it is unknown. May block for minutes."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def _folders(log_dir: str, environ: Mapping[str, str]) -> Sequence[Finding]:
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - what jobs use
    logs = Path(log_dir).absolute() if log_dir else None
    check = partial(_all_folders, temporary, logs)
    hangs = Finding(Level.FAILURE, "folders", "do not answer", "check the network file system")
    return TimeLimited(SECONDS_TO_WRITE).run(check) or (hangs,)


def _all_folders(temporary: Path, logs: Path | None) -> tuple[Finding, ...]:
    return tuple(storage.check_folders(temporary, logs))


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
        # Any user may have named it.
        return f"{as_line(process.name())} ({process.pid})"
    return f"pid {process.pid}"
