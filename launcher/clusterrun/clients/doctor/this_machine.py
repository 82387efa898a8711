"""What is wrong with this machine for a training job, and what to do."""

import errno
import os
import resource
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from msgspec import Struct

from clusterrun.bounds import as_line
from clusterrun.cpuset import CpuSet, own_cpus
from clusterrun.job.this_process import LOOPBACK_HINT, loopback_error
from clusterrun.machine.gpus.gpus import NVIDIA_FILES
from clusterrun.machine.gpus.nvml import broken_gpus, slow_gpus
from clusterrun.machine.host_facts import SHARED_MEMORY
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import ROOT, Tree
from clusterrun.network.addresses import Interfaces, all_addresses, own_interfaces, plain_address
from clusterrun.processes import TimeLimitedCalls

if TYPE_CHECKING:
    import psutil

SECONDS_TO_MEASURE = 0.5
SECONDS_TO_RESOLVE = 5.0
SECONDS_TO_WRITE = 10.0
MAX_PROCESSES_NAMED = 3


class Level(Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """A job may run, slowly or not in all circumstances."""
    FAILURE = "failure"
    """A usual job fails."""


class Finding(Struct, frozen=True):
    """One line of the table."""

    level: Level
    what: str
    """What was looked at: "shared memory"."""
    found: str
    """"64 MiB, 64 MiB free"."""
    advice: str = ""
    """What to do; "" if it is well."""
    nodes: tuple[str, ...] = ()
    """The nodes that it is about; () for all, and for this machine alone."""


class Health(Struct, frozen=True, omit_defaults=True):
    """All findings, as ``clusterrun doctor --json`` prints them."""

    host: str = ""
    """The machine that was checked alone."""
    nodes: tuple[str, ...] = ()
    """The names of a job's nodes, by node rank."""
    findings: tuple[Finding, ...] = ()

    @property
    def has_failed(self) -> bool:
        return any(each.level is Level.FAILURE for each in self.findings)


def well(what: str, found: str) -> Finding:
    return Finding(Level.OK, what, found)


def warning(what: str, found: str, advice: str) -> Finding:
    return Finding(Level.WARNING, what, found, advice)


def failure(what: str, found: str, advice: str) -> Finding:
    return Finding(Level.FAILURE, what, found, advice)


def check_this_machine(log_dir: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what is well and what is not; ``log_dir`` is "" if there are no log files."""
    tree = Tree(ROOT)
    machine = inspect(tree, environ, own_cpus(), "")
    yield check_shared_memory(Path(SHARED_MEMORY))
    yield from _folders(log_dir, environ)
    yield from check_limits(tree)
    yield from check_memory(tree)
    yield from check_quota(machine)
    yield from check_loopback(loopback_error())
    own = own_interfaces()
    host = socket.gethostname()
    resolved = TimeLimitedCalls(SECONDS_TO_RESOLVE).run(partial(addresses_of, host))
    yield from check_name(host, resolved, own)
    yield from check_interfaces(environ, tuple(own))
    yield from check_governor(tree)
    yield from check_load(*_load(machine.allowed))
    yield from check_gpus(tree, machine, version_of("torch"))
    # A driver that hangs may show no GPU at all.
    if any(map(tree.exists, NVIDIA_FILES)) or any(gpu.vendor == "nvidia" for gpu in machine.gpus):
        yield from check_faults(broken_gpus())
        yield from check_slowdowns(slow_gpus())


# Folders that every job writes to.

MIB = 1 << 20

LITTLE_SHARED_MEMORY = 1024 * MIB
TOO_LITTLE_SHARED_MEMORY = 128 * MIB
"""Docker's default of 64 MiB is too little for one data loader."""

LITTLE_SPACE = 1024 * MIB
TOO_LITTLE_SPACE = 64 * MIB

WRITTEN = MIB
"""Bytes that are written to see whether a folder takes them: a quota shows nowhere else."""


def check_shared_memory(folder: Path) -> Finding:
    """Check the folder that data loaders and NCCL share memory by."""
    what = f"shared memory ({folder})"
    advice = "data loaders and NCCL need it: in Docker --shm-size=16g; delete leftover files there"
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return failure(what, str(error.strerror), advice)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    words = f"{size // MIB} MiB, {free // MIB} MiB free"
    if free < TOO_LITTLE_SHARED_MEMORY:
        return failure(what, words, advice)
    return warning(what, words, advice) if free < LITTLE_SHARED_MEMORY else well(what, words)


def check_folder(what: str, folder: Path, elsewhere: str) -> Finding:
    """Check that a folder can be written to, and has room.

    ``elsewhere`` says how to choose another one.
    """
    what = f"{what} ({folder})"
    advice = f"free some space, or {elsewhere}"
    try:
        found = os.statvfs(folder)
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(WRITTEN))
            file.flush()
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        advice = advice if is_full else f"make it a folder that you may write to, or {elsewhere}"
        return failure(what, str(error.strerror), advice)
    free = found.f_bavail * found.f_frsize
    words = f"{free // MIB} MiB free"
    if free < TOO_LITTLE_SPACE:
        return failure(what, words, advice)
    return warning(what, words, advice) if free < LITTLE_SPACE else well(what, words)


def check_folders(temporary: Path, logs: Path | None) -> Iterator[Finding]:
    """Check the folder for temporary files, and that for logs if there is one."""
    yield check_folder("temporary files", temporary, "set TMPDIR to another folder")
    if logs is not None:
        existing = next(folder for folder in (logs, *logs.parents) if folder.exists())
        yield check_folder("logs", existing, "give another --log-dir")


def _folders(log_dir: str, environ: Mapping[str, str]) -> Sequence[Finding]:
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - what jobs use
    logs = Path(log_dir).absolute() if log_dir else None
    found = TimeLimitedCalls(SECONDS_TO_WRITE).run(lambda: tuple(check_folders(temporary, logs)))
    return found or (failure("folders", "do not answer", "check the network file system"),)


# What this process may use: files, processes, memory, CPU time.

FEW_FILES = 1024
TOO_FEW_FILES = 512
"""A worker of eight with data loaders opens hundreds; node 0 opens one for each node."""

FEW_PROCESSES = 4096

LITTLE_MEMORY = 0.1
"""The part of the memory that is available."""

Limit = Callable[[int], tuple[int, int]]
"""Returns soft and hard limit, as ``resource.getrlimit``."""


def check_limits(tree: Tree, limit: Limit = resource.getrlimit) -> Iterator[Finding]:
    """Check the limits of this process, which workers inherit."""
    soft, hard = limit(resource.RLIMIT_NOFILE)
    advice = f"type ulimit -n {_words(hard)} before the launch, or raise it in limits.conf"
    if _is_less(soft, TOO_FEW_FILES):
        yield failure("open files", _words(soft), advice)
    elif _is_less(soft, FEW_FILES):
        yield warning("open files", _words(soft), advice)
    else:
        yield well("open files", _words(soft))
    soft, hard = limit(resource.RLIMIT_NPROC)
    if _is_less(soft, FEW_PROCESSES):
        advice = f"type ulimit -u {_words(hard)}: each thread counts as a process"
        yield warning("processes", _words(soft), advice)
    else:
        yield well("processes", _words(soft))
    soft, _ = limit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and tree.names("sys/class/infiniband"):
        advice = (
            "InfiniBand registers memory: set LimitMEMLOCK=infinity, in Docker --ulimit memlock=-1"
        )
        yield failure("locked memory", f"{soft} bytes", advice)
    else:
        yield well("locked memory", _words(soft))


def check_memory(tree: Tree) -> Iterator[Finding]:
    """Check how much memory is left."""
    facts = tree.facts("proc/meminfo", ":")
    total, available = (
        int(facts.get(name, "0").split()[0]) for name in ("MemTotal", "MemAvailable")
    )
    words = f"{available >> 10} of {total >> 10} MiB available"
    if available < LITTLE_MEMORY * total:
        yield warning(
            "memory",
            words,
            "stop other processes on this machine; to list them: ps aux --sort -rss",
        )
    else:
        yield well("memory", words)


def check_quota(machine: Machine) -> Iterator[Finding]:
    """Check whether the control group leaves the CPUs that this process may use."""
    quota, count = machine.cpu_quota, len(machine.allowed)
    if quota is not None and quota < count:
        words = f"{quota:g} CPUs of the {count} that may be used"
        advice = "threads are throttled: raise the container's CPU limit (--cpus)"
        yield warning("CPU quota", words, advice)
    else:
        yield well("CPU quota", "none" if quota is None else f"{quota:g} CPUs")


def _is_less(value: int, than: int) -> bool:
    return value != resource.RLIM_INFINITY and value < than


def _words(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


# Names and interfaces: the commonest cause of nodes that do not find each other.

LOOPBACK_PREFIXES = ("127.", "::1")

BY_PREFIX = ("NCCL_SOCKET_IFNAME",)
"""A name there means all interfaces that begin with it; "=" before it: that one; "^": all others."""

EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def check_loopback(trouble: str) -> Iterator[Finding]:
    """Check that processes of this machine reach each other."""
    if trouble:
        yield failure("loopback", trouble, LOOPBACK_HINT)


def check_name(host: str, addresses: Sequence[str] | None, own: Interfaces) -> Iterator[Finding]:
    """Check what the name of this host leads to.

    Args:
        host: the name.
        addresses: what it resolves to; None: the name server does not answer.
        own: the addresses of each interface.

    """
    what = f"host name ({host})"
    all_own = {address for known in own.values() for address in known}
    if addresses is None:
        yield failure(what, "the name server does not answer", "check /etc/resolv.conf")
    elif not addresses:
        advice = f"add '{_first(own)} {host}' to /etc/hosts, or give --master-addr an address"
        yield warning(what, "does not resolve", advice)
    elif all(address.startswith(LOOPBACK_PREFIXES) for address in addresses):
        advice = "other nodes can't use it: clusterrun sets *_SOCKET_IFNAME; or correct /etc/hosts"
        yield warning(what, f"only {', '.join(addresses)}", advice)
    elif not all_own.intersection(addresses):
        advice = (
            "no interface has it: clusterrun sets *_SOCKET_IFNAME; or correct /etc/hosts or DNS,"
            f" this machine has {_first(own)}"
        )
        yield failure(what, ", ".join(addresses), advice)
    else:
        yield well(what, ", ".join(addresses))


def check_interfaces(variables: Mapping[str, str], names: Sequence[str]) -> Iterator[Finding]:
    """Check that the interfaces that variables name exist."""
    for variable in (*BY_PREFIX, *EXACT):
        value = variables.get(variable, "")
        if not value:
            continue
        usable = usable_interfaces(value, names, by_prefix=variable in BY_PREFIX)
        if usable:
            yield well(variable, f"{value}: {', '.join(usable)}")
        else:
            advice = f"no interface has that name: unset it, or give one of {', '.join(names)}"
            yield failure(variable, value, advice)


def usable_interfaces(value: str, names: Sequence[str], *, by_prefix: bool) -> list[str]:
    """Return those of ``names`` that a variable's value leaves, in their order."""
    kind, rest = (value[0], value[1:]) if by_prefix and value[:1] in {"^", "="} else ("", value)
    wanted = [part for part in rest.split(",") if part]
    if by_prefix and kind != "=":
        found = [name for name in names if name.startswith(tuple(wanted))]
    else:
        found = [name for name in names if name in wanted]
    return [name for name in names if name not in found] if kind == "^" else found


def _first(own: Interfaces) -> str:
    """Return an address of this machine that other machines may know."""
    outside = (
        each for known in own.values() for each in known if not each.startswith(LOOPBACK_PREFIXES)
    )
    return next(outside, "ADDRESS")


def addresses_of(host: str) -> tuple[str, ...]:
    """Return what a name resolves to; () if it is unknown. May block for minutes."""
    try:
        return tuple(plain_address(found.text) for found in all_addresses(host))
    except OSError:
        return ()


# CPUs and GPUs: what makes one node slower than the others.

BUSY = 0.25
"""The part of the CPUs that other processes use."""

SLOW_GOVERNORS = {"powersave", "conservative"}

DYNAMIC_DRIVERS = {"intel_pstate", "amd-pstate-epp"}
"""With these, "powersave" is the usual one, and fast under load."""


def check_governor(tree: Tree) -> Iterator[Finding]:
    """Check the frequency governor of the CPUs."""
    folder = "sys/devices/system/cpu"
    slow, known = [], set()
    for number in tree.numbers(folder, "cpu"):
        place = f"{folder}/cpu{number}/cpufreq"
        governor = tree.text(f"{place}/scaling_governor")
        known |= {governor} - {""}
        is_dynamic = tree.text(f"{place}/scaling_driver") in DYNAMIC_DRIVERS
        if governor in SLOW_GOVERNORS and not is_dynamic:
            slow.append(number)
    if slow:
        words = f"{', '.join(sorted(known))} on {len(slow)} CPUs"
        yield warning("CPU governor", words, "type cpupower frequency-set -g performance")
    else:
        yield well("CPU governor", ", ".join(sorted(known)) or "not shown")


def check_load(use: float, busiest: Sequence[str]) -> Iterator[Finding]:
    """Check what other processes use of the CPUs: ``use`` of all, 0 to 1, the ``busiest`` first."""
    words = f"{use:.0%} in use".replace("%", " %")
    if use > BUSY:
        advice = "end what else runs here, or expect this node to be slow"
        yield warning("CPU load", f"{words}: {', '.join(busiest)}", advice)
    else:
        yield well("CPU load", words)


def check_faults(faults: str) -> Iterator[Finding]:
    """Check what NVML reports of broken GPUs: ``GPU 3 is lost``; "" is nothing."""
    if faults:
        advice = "drain the node; nvidia-smi -q and the kernel's log (Xid) have the details"
        yield failure("hardware", faults, advice)


def check_slowdowns(slowdowns: str) -> Iterator[Finding]:
    """Check what NVML reports of GPUs that are slower than they could be; "" is nothing."""
    if slowdowns:
        advice = "check cooling and power; nvidia-smi -q -d PERFORMANCE,ECC,PCI has the details"
        yield warning("slow GPUs", slowdowns, advice)


def check_gpus(tree: Tree, machine: Machine, torch: str) -> Iterator[Finding]:
    """Check places and links of the GPUs, and whether torch can use them.

    ``torch`` is its version, "2.13.0+cpu"; "" if it is not installed.
    """
    if not machine.gpus:
        yield well("GPUs", machine.accelerators or "none")
        return
    if machine.visible_warning:
        yield warning("GPUs", machine.visible_warning, "check CUDA_VISIBLE_DEVICES")
    else:
        yield well("GPUs", f"{len(machine.visible)} visible of {len(machine.gpus)}")
    if "+cpu" in torch:
        yield failure("torch", f"{torch} can't use GPUs", "install the build for your driver")
    unknown = [str(gpu.index) for gpu in machine.gpus if gpu.numa_node is None]
    if unknown and len(machine.nodes) > 1:
        words = f"unknown for GPU {', '.join(unknown)}"
        yield warning("NUMA node of GPUs", words, "name them by --numa-map: see clusterrun topo")
    for gpu in machine.gpus:
        place = f"sys/bus/pci/devices/{gpu.bdf}"
        now, most = (tree.integer(f"{place}/{which}_link_width") for which in ("current", "max"))
        if now and most and now < most:
            advice = "reseat the card or its riser: its transfers are slower than on other nodes"
            yield failure(f"link of GPU {gpu.index}", f"x{now} of x{most}", advice)


def version_of(package: str) -> str:
    """Return its version; "" if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def _load(allowed: CpuSet) -> tuple[float, list[str]]:
    """Return which part of the allowed CPUs is in use, and the processes that use most."""
    import psutil

    before = _cpu_times()
    use = psutil.cpu_percent(SECONDS_TO_MEASURE, percpu=True)
    ours = [percent for cpu, percent in enumerate(use) if cpu in allowed] or use
    after = _cpu_times()
    used = {process: after[process] - before.get(process, 0.0) for process in after}
    busiest = sorted(used, key=lambda process: -used[process])[:MAX_PROCESSES_NAMED]
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
