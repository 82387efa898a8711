"""Checks of this machine for a training job, with advice."""

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
from runpy import run_path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from msgspec import Struct

from clusterrun.bounds import as_line, counted
from clusterrun.cpuset import CpuSet, own_cpus
from clusterrun.job.file_kinds import FileKind, kind_of
from clusterrun.job.this_process import LOOPBACK_HINT, loopback_error
from clusterrun.machine.gpus.gpus import NVIDIA_FILES
from clusterrun.machine.gpus.nvml import broken_gpus, slow_gpus
from clusterrun.machine.host_facts import SHARED_MEMORY
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Machine
from clusterrun.machine.tree import ROOT, Tree, parse_number
from clusterrun.network.addresses import Interfaces, all_addresses, own_interfaces, plain_address
from clusterrun.processes import TimeLimitedCalls

if TYPE_CHECKING:
    import psutil

SECONDS_TO_MEASURE = 0.5
SECONDS_TO_RESOLVE = 5.0
SECONDS_TO_WRITE = 10.0
MAX_PROCESSES_NAMED = 3


class Level(Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """A job may run slowly, or fail under some circumstances."""
    FAILURE = "failure"
    """A typical job fails."""


class Finding(Struct, frozen=True):
    """A row of the table."""

    level: Level
    what: str
    """What was checked, such as ``shared memory``."""
    found: str
    """The result, such as ``64 MiB, 64 MiB free``."""
    advice: str = ""
    """What the user should do."""
    nodes: tuple[str, ...] = ()
    """The nodes that a problem is on; empty for all nodes, and if only this machine was checked."""


class Health(Struct, frozen=True, omit_defaults=True):
    """What ``clusterrun doctor --json`` prints."""

    host: str = ""
    """Set if only this machine was checked."""
    nodes: tuple[str, ...] = ()
    """The names of a job's nodes, by node rank."""
    findings: tuple[Finding, ...] = ()

    @property
    def has_failed(self) -> bool:
        return any(each.level is Level.FAILURE for each in self.findings)


def ok(what: str, found: str) -> Finding:
    return Finding(Level.OK, what, found)


def warning(what: str, found: str, advice: str, *nodes: str) -> Finding:
    return Finding(Level.WARNING, what, found, advice, nodes)


def failure(what: str, found: str, advice: str, *nodes: str) -> Finding:
    return Finding(Level.FAILURE, what, found, advice, nodes)


def check_this_machine(log_dir: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Run all checks; ``log_dir`` is "" without log files."""
    tree = Tree(ROOT)
    machine = inspect(tree, environ, own_cpus(), "")
    yield check_shared_memory(Path(SHARED_MEMORY))
    yield from _check_folders_in_time(log_dir, environ)
    yield from check_limits(tree)
    yield check_memory(tree)
    yield check_quota(machine)
    if error := loopback_error():
        yield failure("loopback", error, LOOPBACK_HINT)
    own = own_interfaces()
    host = socket.gethostname()
    resolved = TimeLimitedCalls(SECONDS_TO_RESOLVE).run(partial(addresses_of, host))
    yield check_name(host, resolved, own)
    yield from check_interfaces(environ, tuple(own))
    yield check_governor(tree)
    yield check_load(*cpu_load(tree, machine.allowed))
    yield from check_gpus(tree, machine, torch_build())
    # If the driver hangs, no GPU may be found.
    if any(map(tree.exists, NVIDIA_FILES)) or any(gpu.vendor == "nvidia" for gpu in machine.gpus):
        if faults := broken_gpus():
            advice = "drain the node; nvidia-smi -q and the kernel's log (Xid) have the details"
            yield failure("hardware", faults, advice)
        if slowdowns := slow_gpus():
            advice = "check cooling and power; nvidia-smi -q -d PERFORMANCE,ECC,PCI has the details"
            yield warning("slow GPUs", slowdowns, advice)


# Folders that every job writes to.

MIB = 1 << 20

RECOMMENDED_SHARED_MEMORY = 1024 * MIB
REQUIRED_SHARED_MEMORY = 128 * MIB
"""Docker's default of 64 MiB is too little for one data loader."""

RECOMMENDED_SPACE = 1024 * MIB
REQUIRED_SPACE = 64 * MIB

TEST_BYTES = MIB
"""Bytes that are written as a test, because statvfs does not show a quota."""


def check_shared_memory(folder: Path) -> Finding:
    """Check the file system through which data loaders and NCCL share memory."""
    what = f"shared memory ({folder})"
    advice = "data loaders and NCCL need it: in Docker --shm-size=16g; delete leftover files there"
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return failure(what, str(error.strerror), advice)
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    text = f"{size // MIB} MiB, {free // MIB} MiB free"
    if free < REQUIRED_SHARED_MEMORY:
        return failure(what, text, advice)
    return warning(what, text, advice) if free < RECOMMENDED_SHARED_MEMORY else ok(what, text)


def check_folder(what: str, folder: Path, elsewhere: str) -> Finding:
    """Check that a folder is writable and has space; ``elsewhere`` says how to choose another one."""
    what = f"{what} ({folder})"
    advice = f"free some space, or {elsewhere}"
    try:
        found = os.statvfs(folder)
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(TEST_BYTES))
            file.flush()
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        advice = advice if is_full else f"make it a folder that you may write to, or {elsewhere}"
        return failure(what, str(error.strerror), advice)
    free = found.f_bavail * found.f_frsize
    text = f"{free // MIB} MiB free"
    if free < REQUIRED_SPACE:
        return failure(what, text, advice)
    return warning(what, text, advice) if free < RECOMMENDED_SPACE else ok(what, text)


def check_folders(temporary: Path, logs: Path | None) -> Iterator[Finding]:
    """Check the folder for temporary files, and the one for logs; of a new one, its nearest parent."""
    yield check_folder("temporary files", temporary, "set TMPDIR to another folder")
    if logs is not None:
        existing = next(
            folder
            for folder in (logs, *logs.parents)
            if kind_of(str(folder)) is not FileKind.NOTHING
        )
        yield check_folder("logs", existing, "give another --log-dir")


def _check_folders_in_time(log_dir: str, environ: Mapping[str, str]) -> Sequence[Finding]:
    temporary = Path(environ.get("TMPDIR") or "/tmp")  # noqa: S108 - what jobs use
    logs = Path(log_dir).absolute() if log_dir else None
    found = TimeLimitedCalls(SECONDS_TO_WRITE).run(lambda: tuple(check_folders(temporary, logs)))
    return found or (failure("folders", "do not answer", "check the network file system"),)


# Limits on files, processes, memory and CPU time.

RECOMMENDED_FILES = 1024
REQUIRED_FILES = 512
"""Each of eight workers with data loaders opens hundreds; node 0 opens one for each node."""

MIN_PROCESSES = 4096

MIN_MEMORY_AVAILABLE = 0.1
"""As a fraction of the total memory."""

GetLimit = Callable[[int], tuple[int, int]]
"""Returns the soft and the hard limit, as ``resource.getrlimit`` does."""


def check_limits(tree: Tree, get_limit: GetLimit = resource.getrlimit) -> Iterator[Finding]:
    """Check the limits of this process, which workers inherit."""
    soft, hard = get_limit(resource.RLIMIT_NOFILE)
    advice = f"run ulimit -n {_limit_text(hard)} before the launch, or raise it in limits.conf"
    if _is_below(soft, REQUIRED_FILES):
        yield failure("open files", _limit_text(soft), advice)
    elif _is_below(soft, RECOMMENDED_FILES):
        yield warning("open files", _limit_text(soft), advice)
    else:
        yield ok("open files", _limit_text(soft))
    soft, hard = get_limit(resource.RLIMIT_NPROC)
    if _is_below(soft, MIN_PROCESSES):
        advice = f"run ulimit -u {_limit_text(hard)}: each thread counts as a process"
        yield warning("processes", _limit_text(soft), advice)
    else:
        yield ok("processes", _limit_text(soft))
    soft, _ = get_limit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and tree.names("sys/class/infiniband"):
        advice = (
            "InfiniBand registers memory: set LimitMEMLOCK=infinity, in Docker --ulimit memlock=-1"
        )
        yield failure("locked memory", f"{soft} bytes", advice)
    else:
        yield ok("locked memory", _limit_text(soft))


def check_memory(tree: Tree) -> Finding:
    """Check how much memory is available."""
    facts = tree.facts("proc/meminfo", ":")
    total, available = (
        int(facts.get(name, "0").split()[0]) for name in ("MemTotal", "MemAvailable")
    )
    found = f"{available >> 10} of {total >> 10} MiB available"
    if available >= MIN_MEMORY_AVAILABLE * total:
        return ok("memory", found)
    advice = "stop other processes on this machine; to list them: ps aux --sort -rss"
    return warning("memory", found, advice)


def check_quota(machine: Machine) -> Finding:
    """Check whether the control group's CPU quota covers the CPUs that this process may use."""
    quota, count = machine.cpu_quota, len(machine.allowed)
    if quota is not None and quota < count:
        found = f"{counted(quota, 'CPU')} of the {count} that may be used"
        advice = "threads are throttled: raise the container's CPU limit (--cpus)"
        return warning("CPU quota", found, advice)
    return ok("CPU quota", "none" if quota is None else counted(quota, "CPU"))


def _is_below(limit: int, minimum: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < minimum


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


# Host names and interfaces, which are the most common reason that nodes can't connect.

LOOPBACK_PREFIXES = ("127.", "::1")

NCCL_IFNAME = "NCCL_SOCKET_IFNAME"
"""Its value has prefixes of interface names, or after "=" whole names; "^" excludes what follows."""

SOCKET_IFNAMES = (NCCL_IFNAME, "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables that choose network interfaces."""


def check_name(host: str, addresses: Sequence[str] | None, own: Interfaces) -> Finding:
    """Check what the name of this host resolves to.

    Args:
        host: the name.
        addresses: what it resolves to; None if the name server does not answer.
        own: the addresses of each interface.

    """
    what = f"host name ({host})"
    all_own = {address for known in own.values() for address in known}
    if addresses is None:
        return failure(what, "the name server does not answer", "check /etc/resolv.conf")
    if not addresses:
        advice = (
            f"add '{_external_address(own)} {host}' to /etc/hosts, or give --master-addr an address"
        )
        return warning(what, "does not resolve", advice)
    if all(address.startswith(LOOPBACK_PREFIXES) for address in addresses):
        advice = (
            "other nodes can't use this address: clusterrun works around it by setting"
            " *_SOCKET_IFNAME; to fix it, correct /etc/hosts"
        )
        return warning(what, f"only {', '.join(addresses)}", advice)
    if not all_own.intersection(addresses):
        advice = (
            "no interface has this address: clusterrun works around it by setting *_SOCKET_IFNAME;"
            f" to fix it, set this machine's address, {_external_address(own)}, in /etc/hosts or"
            " DNS"
        )
        return failure(what, ", ".join(addresses), advice)
    return ok(what, ", ".join(addresses))


def check_interfaces(variables: Mapping[str, str], names: Sequence[str]) -> Iterator[Finding]:
    """Check that the interfaces that variables name exist."""
    for variable in SOCKET_IFNAMES:
        value = variables.get(variable, "")
        if usable := usable_interfaces(variable, value, names):
            yield ok(variable, f"{value}: {', '.join(usable)}")
        elif value:
            advice = (
                f"no interface has that name: unset the variable, or give one of {', '.join(names)}"
            )
            yield failure(variable, value, advice)


def usable_interfaces(variable: str, value: str, names: Sequence[str]) -> list[str]:
    """Return the interfaces among ``names`` that a variable's value selects, in the same order."""
    is_nccl = variable == NCCL_IFNAME
    kind, rest = (value[0], value[1:]) if is_nccl and value[:1] in {"^", "="} else ("", value)
    wanted = [part for part in rest.split(",") if part]
    if is_nccl and kind != "=":
        found = [name for name in names if name.startswith(tuple(wanted))]
    else:
        found = [name for name in names if name in wanted]
    return [name for name in names if name not in found] if kind == "^" else found


def _external_address(own: Interfaces) -> str:
    """Return an address of this machine that other machines may reach."""
    outside = (
        each for known in own.values() for each in known if not each.startswith(LOOPBACK_PREFIXES)
    )
    return next(outside, "ADDRESS")


def addresses_of(host: str) -> tuple[str, ...]:
    """Return the addresses of a name, () if it is unknown; may block for minutes."""
    try:
        return tuple(plain_address(found.text) for found in all_addresses(host))
    except OSError:
        return ()


# CPUs and GPUs, which can make one node slower than the others.

MAX_CPU_LOAD = 0.25
"""The fraction of CPU time that other processes may use."""

SLOW_GOVERNORS = {"powersave", "conservative"}

DYNAMIC_DRIVERS = {"intel_pstate", "amd-pstate-epp"}
"""With these drivers, "powersave" is the default governor, and is fast under load."""


def check_governor(tree: Tree) -> Finding:
    """Check the frequency governor of the CPUs."""
    folder = "sys/devices/system/cpu"
    slow, known = 0, set()
    for number in tree.numbers(folder, "cpu"):
        governor = tree.text(f"{folder}/cpu{number}/cpufreq/scaling_governor")
        driver = tree.text(f"{folder}/cpu{number}/cpufreq/scaling_driver")
        known |= {governor} - {""}
        slow += governor in SLOW_GOVERNORS and driver not in DYNAMIC_DRIVERS
    names = ", ".join(sorted(known))
    if slow:
        advice = "run cpupower frequency-set -g performance"
        return warning("CPU governor", f"{names} on {counted(slow, 'CPU')}", advice)
    return ok("CPU governor", names or "not shown")


def check_load(load: float, busiest: Sequence[str]) -> Finding:
    """Check the CPU load (0 to 1) of other processes, and name the ``busiest``."""
    found = f"{load:.0%} in use".replace("%", " %")
    if load <= MAX_CPU_LOAD:
        return ok("CPU load", found)
    advice = "stop other processes on this machine, or expect this node to be slow"
    return warning("CPU load", f"{found}: {', '.join(busiest)}", advice)


def check_gpus(tree: Tree, machine: Machine, torch: Mapping[str, object]) -> Iterator[Finding]:
    """Check NUMA nodes and PCI links of the GPUs, and whether torch can use them.

    ``torch`` is what ``torch_build`` returns.
    """
    gpus = [gpu for gpu in machine.gpus if not gpu.parent]
    if machine.visible_warning:
        advice = "clusterrun topo lists the GPUs of this machine, and those that are visible"
        yield warning("GPUs", machine.visible_warning, advice)
    elif gpus:
        # A MIG slice has its GPU's number.
        visible = {gpu.index for gpu in machine.visible}
        yield ok("GPUs", f"{len(visible)} visible of {len(gpus)}")
    else:
        yield ok("GPUs", machine.accelerators or "none")
    # For Huawei's, a package adds them to the build without GPUs.
    needs_build = any(gpu.vendor != "huawei" for gpu in gpus)
    if torch and needs_build and not any(torch.get(name) for name in ("cuda", "hip", "xpu")):
        found = f"{torch.get('__version__')} can't use GPUs"
        yield failure("torch", found, "install the build for your driver")
    unknown = [str(gpu.index) for gpu in gpus if gpu.numa_node is None]
    if unknown and len(machine.nodes) > 1:
        found = f"unknown for GPU {', '.join(unknown)}"
        yield warning("NUMA node of GPUs", found, "name them by --numa-map: see clusterrun topo")
    for gpu in gpus:
        folder = f"sys/bus/pci/devices/{gpu.bdf}"
        width = tree.integer(f"{folder}/current_link_width")
        full_width = tree.integer(f"{folder}/max_link_width")
        if width and full_width and width < full_width:
            advice = "reseat the card or its riser: its transfers are slower than on other nodes"
            yield failure(f"link of GPU {gpu.index}", f"x{width} of x{full_width}", advice)


def version_of(package: str) -> str:
    """Return the version of a package, "" if it is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


def torch_build() -> Mapping[str, object]:
    """Return the values in torch's version.py, {} if there is none; importing torch takes seconds."""
    with suppress(metadata.PackageNotFoundError, OSError):
        return run_path(str(metadata.distribution("torch").locate_file("torch/version.py")))
    return {}


def cpu_load(tree: Tree, allowed: CpuSet) -> tuple[float, list[str]]:
    """Return the load of the allowed CPUs, 0 to 1, and names of the processes that cause most of it."""
    import psutil

    before = _cpu_times()
    percents = psutil.cpu_percent(SECONDS_TO_MEASURE, percpu=True)
    # psutil numbers the CPUs that are online from 0.
    names = [line.partition(" ")[0] for line in tree.text("proc/stat").splitlines()]
    numbers = [parse_number(name[3:]) for name in names if name.startswith("cpu") and name != "cpu"]
    by_cpu = zip(numbers, percents, strict=False)
    ours = [percent for cpu, percent in by_cpu if cpu in allowed] or percents
    after = _cpu_times()
    used = {process: after[process] - before.get(process, 0.0) for process in after}
    busiest = sorted(used, key=lambda process: -used[process])[:MAX_PROCESSES_NAMED]
    return sum(ours) / len(ours) / 100, [_process_name(process) for process in busiest]


def _cpu_times() -> "dict[psutil.Process, float]":
    import psutil

    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process] = times.user + times.system
    return found


def _process_name(process: "psutil.Process") -> str:
    import psutil

    with suppress(psutil.Error):
        # Any user may have chosen the name.
        return f"{as_line(process.name())} ({process.pid})"
    return f"pid {process.pid}"
