"""Run clusterrun on a real kernel with two NUMA nodes, under qemu, and compare workers with plans.

    python scripts/qemu_numa.py --cache ~/.cache/clusterrun-qemu

Debian's packages for that (qemu, a kernel, a Python) are downloaded and unpacked below the cache
folder, some 250 MB; nothing is installed, and root is not needed. If they can't be downloaded, the
script prints the reason and exits with 77.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
CANNOT = 77
"""Exit code if the packages are missing; automake's tests use the same."""

PR_SET_PDEATHSIG = 1

SECONDS_TO_BOOT_AND_RUN = 600
"""It takes 50 s, and far longer on a very busy machine."""

GUEST_PACKAGES = ("python3", "busybox-static")
PYTHON_PACKAGES = ("click", "psutil", "msgspec", "PyYAML")

INIT = """\
#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t sysfs sysfs /sys
busybox mount -t devtmpfs devtmpfs /dev
busybox mkdir -p /dev/shm
for folder in /tmp /run /dev/shm; do busybox mount -t tmpfs tmpfs $folder; done
busybox hostname guest
busybox ip link set lo up
busybox mount -t ext4 -o ro /dev/nvme1n1 /mnt
busybox sh /mnt/run.sh
echo "@@CODE $?"
busybox poweroff -f
"""

WORKER = """\
import glob, json, mmap, os, sys, time

block = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
# Else the kernel lists it as one with its neighbours.
block.madvise(mmap.MADV_DONTFORK)
for at in range(0, len(block), 4096):
    block[at] = 1
[cpus] = [line.split()[1] for line in open("/proc/self/status") if line[:12] == "Cpus_allowed" and "list" in line]
maps = [line.split() for line in open("/proc/self/numa_maps")]
[largest] = [fields for fields in maps if f"anon={len(block) // 4096}" in fields]
pages = {field[1:field.index("=")]: int(field.partition("=")[2]) for field in largest if field[0] == "N"}
print("@@WORKER", json.dumps({
    "rank": int(os.environ["RANK"]), "cpus": cpus, "policy": largest[1], "pages": pages,
    "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
}), flush=True)
if "restart" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    # One fails once all have spoken.
    open(f"/tmp/spoken-{os.environ['RANK']}", "w").close()
    for _ in range(600):
        time.sleep(0.1)
        if os.environ["RANK"] == "0" and len(glob.glob("/tmp/spoken-*")) == int(os.environ["WORLD_SIZE"]):
            sys.exit(1)
"""


class Run(NamedTuple):
    """One call of clusterrun in the guest."""

    what: str
    cpus: Sequence[str]
    """CPUs of each worker; nodes 0 and 1 have two cores of two CPUs each."""
    options: Sequence[str]
    args: Sequence[str] = ()
    around: str = ""
    attempts: int = 1
    before: str = ""
    """Shell commands that run first."""


FAKE_GPUS = """\
busybox mount -t tmpfs tmpfs /proc/driver
count=0
for device in /sys/bus/pci/devices/*; do
  if [ $(busybox cat $device/vendor) = 0x1234 ]; then
    folder=/proc/driver/nvidia/gpus/${device##*/}
    busybox mkdir -p $folder
    echo "GPU UUID: GPU-$count" > $folder/information
    echo "Bus Location: ${device##*/}" >> $folder/information
    echo "Device Minor: $count" >> $folder/information
    busybox mknod /dev/nvidia$count c 1 3
    count=$((count + 1))
  fi
done
"""
"""qemu's teaching devices, one behind each node's own bus, listed as NVIDIA's driver lists GPUs."""


RUNS = (
    Run(
        "spread over the nodes, memory bound",
        ["0-3", "4-7"],
        ["--nproc-per-node=2", "--numa-memory=bind"],
    ),
    Run(
        "cores of their own, memory preferred, after a restart too",
        ["0-1", "2-3", "4-5", "6-7"],
        [
            "--nproc-per-node=4",
            "--numa-binding=exclusive",
            "--numa-memory=preferred",
            "--max-restarts=1",
        ],
        args=["restart"],
        attempts=2,
    ),
    Run(
        "what a scheduler leaves: one core of each node",
        ["0-1", "4-5"],
        ["--nproc-per-node=2", "--numa-memory=bind", "--start-method=spawn"],
        around="busybox taskset 33",
    ),
    Run("one worker is not bound", ["0-7"], ["--nproc-per-node=1"]),
    Run(
        "the first GPU is at the second node",
        ["4-7", "0-3"],
        ["--numa-memory=bind", "--numa-strict"],
        before=FAKE_GPUS,
    ),
    Run(
        "the user has the last word on that",
        ["0-3", "4-5"],
        ["--numa-memory=preferred", "--numa-map=0=node0,GPU-1=4-5", "--virtual-local-rank"],
    ),
)


class CannotError(Exception):
    """The machine lacks something that this script needs."""


class BootError(Exception):
    """The guest has not run all jobs."""


def main() -> int:
    """Boot, compare, print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, required=True, help="folder for what is unpacked")
    cache: Path = parser.parse_args().cache.resolve()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        qemu, kernel, root = _qemu(cache), _kernel(cache), _root_image(cache)
        job = _job_image(cache)
        start = time.monotonic()
        printed = _boot(qemu, kernel, root, job, cache / "console.log")
    except CannotError as error:
        print(f"not run: {error}")
        return CANNOT
    except BootError as error:
        print(error)
        return 1
    print(f"a kernel with two NUMA nodes ran {len(RUNS)} jobs in {time.monotonic() - start:.0f} s")
    wrong = [line for number, run in enumerate(RUNS) for line in _compare(run, number, printed)]
    print("\n".join(wrong) if wrong else "every worker is where its plan has it")
    return 1 if wrong else 0


def _compare(run: Run, number: int, printed: Sequence[str]) -> Iterator[str]:
    """Print the workers of one run; yield the differences from its plan."""
    part = _between(printed, f"@@RUN {number}", f"@@END {number}")
    plan = json.loads("\n".join(_between(part, "@@PLAN", "@@START")))["workers"]
    workers = [json.loads(line.partition("@@WORKER ")[2]) for line in part if "@@WORKER " in line]
    print(f"{run.what}: clusterrun {' '.join(run.options)}")
    if len(workers) != len(plan) * run.attempts:
        yield f"{run.what}: {len(workers)} workers of {len(plan) * run.attempts} have spoken"
        print("\n".join(f"    {line}" for line in part))
    if [worker["cpus"] or "0-7" for worker in plan] != run.cpus:
        yield f"{run.what}: planned are {[worker['cpus'] for worker in plan]}, not {run.cpus}"
    for worker in sorted(workers, key=lambda worker: (worker["attempt"], worker["rank"])):
        planned = plan[worker["rank"]]
        print(
            f"  rank {worker['rank']}, attempt {worker['attempt']}: CPUs {worker['cpus']},"
            f" memory {worker['policy']}, pages by node {worker['pages']}"
        )
        yield from _differences(run, worker, planned)


def _differences(run: Run, worker: dict[str, Any], planned: dict[str, Any]) -> Iterator[str]:
    who = f"{run.what}: rank {worker['rank']}"
    cpus = planned["cpus"] or "0-7"
    if worker["cpus"] != cpus:
        yield f"{who} is on CPUs {worker['cpus']}, planned are {cpus}"
    memory = planned["memory"]
    if memory is None:
        if worker["policy"] != "default":
            yield f"{who} has memory policy {worker['policy']}, planned is none"
        return
    nodes = [str(node) for node in memory["numa_nodes"]]
    policy = {"bind": "bind", "preferred": "prefer"}[memory["mode"]]
    if not worker["policy"].startswith(policy) or not worker["policy"].endswith(",".join(nodes)):
        yield f"{who} has memory policy {worker['policy']}, planned is {policy}:{','.join(nodes)}"
    if not set(worker["pages"]) <= set(nodes):
        yield f"{who} has pages on nodes {worker['pages']}, planned are nodes {nodes}"


def _between(lines: Sequence[str], first: str, last: str) -> Sequence[str]:
    if first not in lines or last not in lines:
        return []
    return lines[lines.index(first) + 1 : lines.index(last)]


def _qemu(cache: Path) -> list[str]:
    """Return the command of qemu: the installed one, or one that is unpacked here."""
    installed = shutil.which("qemu-system-x86_64")
    if installed:
        return [installed]
    there = cache / "qemu"
    if not there.exists():
        _unpack(cache, _missing(["qemu-system-x86"], None), there)
    libraries = there / "usr/lib/x86_64-linux-gnu"
    shares = [there / "usr/share/qemu", there / "usr/share/seabios"]
    found = ":".join(
        str(path) for path in (libraries, *libraries.glob("*/"), there / "lib/x86_64-linux-gnu")
    )
    return [
        *("env", f"LD_LIBRARY_PATH={found}", str(there / "usr/bin/qemu-system-x86_64")),
        *(word for share in shares for word in ("-L", str(share))),
    ]


def _kernel(cache: Path) -> Path:
    there = cache / "kernel"
    if not there.exists():
        depends = _output_of("apt-cache", "depends", "linux-image-cloud-amd64").split()
        names = [word for word in depends if word.startswith("linux-image-")][1:]
        _unpack(cache, names[:1], there)
    (image,) = (there / "boot").glob("vmlinuz-*")
    return image


def _root_image(cache: Path) -> Path:
    """Return the image of the guest's root: Python, a shell and the init script."""
    image = cache / "root.img"
    if image.exists():
        return image
    root = cache / "root"
    if not root.exists():
        empty = cache / "no-packages"
        empty.touch()
        _unpack(cache, _missing(GUEST_PACKAGES, empty), root)
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    for folder in ("dev", "proc", "sys", "tmp", "run", "mnt"):
        (root / folder).mkdir(exist_ok=True)
    _make_image(root, image, "320M")
    return image


def _job_image(cache: Path) -> Path:
    """Return the image with the launcher as it is now, and the script that the guest runs."""
    python = cache / "python"
    if not python.exists():
        wanted = ["--python-version=3.11", "--only-binary=:all:", "--no-deps", "-q"]
        _run(
            "pip",
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                *wanted,
                f"--target={python}.new",
                *PYTHON_PACKAGES,
            ],
        )
        Path(f"{python}.new").rename(python)
    job = cache / "job"
    shutil.rmtree(job, ignore_errors=True)
    shutil.copytree(python, job / "python")
    shutil.copytree(
        REPOSITORY / "launcher" / "clusterrun",
        job / "python/clusterrun",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (job / "worker.py").write_text(WORKER)
    (job / "run.sh").write_text("\n".join(_guest_lines()))
    image = cache / "job.img"
    _make_image(job, image, "48M")
    return image


def _guest_lines() -> Iterator[str]:
    yield "export PYTHONPATH=/mnt/python PYTHONDONTWRITEBYTECODE=1 PATH=/usr/bin:/bin HOME=/tmp NO_COLOR=1"
    yield "cd /tmp"
    for number, run in enumerate(RUNS):
        call = f"{run.around} python3 -m clusterrun {' '.join(run.options)}"
        yield run.before
        yield f"echo @@RUN {number}; echo @@PLAN"
        yield f"{call} --dry-run --json /mnt/worker.py"
        yield "echo; echo @@START"
        yield f"{call} /mnt/worker.py {' '.join(run.args)}"
        yield f"echo @@END {number}"


def _boot(qemu: Sequence[str], kernel: Path, root: Path, job: Path, console: Path) -> list[str]:
    """Return the lines that the guest has printed.

    Raises:
        BootError: it has not reached the end of its script.

    """
    arguments = "console=ttyS0 root=/dev/nvme0n1 ro rootfstype=ext4 init=/init panic=-1 mitigations=off nokaslr tsc=reliable quiet"
    command = [
        *qemu,
        *("-accel", "tcg,thread=multi", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-no-reboot", "-serial", f"file:{console}", "-M", "q35"),
        *("-cpu", "max,vendor=GenuineIntel", "-m", "1G", "-smp", "8,sockets=2,cores=2,threads=2"),
        *("-kernel", str(kernel), "-append", arguments),
        *_disk(root, "root", "snapshot=on"),
        *_disk(job, "job", "readonly=on"),
        *("-object", "memory-backend-ram,id=m0,size=512M"),
        *("-object", "memory-backend-ram,id=m1,size=512M"),
        *_device_at(node=1, bus=16),
        *_device_at(node=0, bus=32),
        *("-numa", "node,nodeid=0,cpus=0-3,memdev=m0", "-numa", "node,nodeid=1,cpus=4-7,memdev=m1"),
    ]
    for _ in range(2):
        # qemu has died at the start once, for an unknown reason: it is started again.
        try:
            ended = subprocess.run(
                command,
                timeout=SECONDS_TO_BOOT_AND_RUN,
                check=False,
                stdin=subprocess.DEVNULL,
                preexec_fn=_end_with_this_script,
            )
        except subprocess.TimeoutExpired as error:
            raise BootError(f"{error}, see {console}") from None
        lines = console.read_text(errors="replace").replace("\r", "").splitlines()
        if any(line.startswith("@@CODE") for line in lines):
            return lines
        if ended.returncode >= 0:
            break
    raise BootError(f"qemu ended with {ended.returncode} before the guest did, see {console}")


def _device_at(node: int, bus: int) -> Sequence[str]:
    """Return the options for a device on a PCI bus of this NUMA node."""
    return (
        *("-device", f"pxb-pcie,id=px{bus},bus_nr={bus},bus=pcie.0,numa_node={node}"),
        *("-device", f"pcie-root-port,id=rp{bus},bus=px{bus},chassis={bus},slot=0"),
        *("-device", f"edu,bus=rp{bus}"),
    )


def _end_with_this_script() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _disk(image: Path, name: str, how: str) -> Sequence[str]:
    drive = f"file={image},if=none,id={name},format=raw,{how}"
    return ("-drive", drive, "-device", f"nvme,drive={name},serial={name},bus=pcie.0")


def _missing(names: Sequence[str], status: Path | None) -> list[str]:
    """Return the packages that ``names`` need and ``status`` (None: this machine) has not."""
    option = [] if status is None else ["-o", f"Dir::State::status={status}"]
    printed = _output_of("apt-get", "install", "-s", *option, "--no-install-recommends", *names)
    return [line.split()[1] for line in printed.splitlines() if line.startswith("Inst ")]


def _unpack(cache: Path, names: Sequence[str], there: Path) -> None:
    """Download packages, and unpack them below ``there`` without running their scripts."""
    archives = cache / f"{there.name}.debs"
    archives.mkdir(exist_ok=True)
    _run("apt-get download", ["apt-get", "download", "-q", *names], archives)
    unfinished = there.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg-deb", ["dpkg-deb", "-x", str(archive), str(unfinished)])
    unfinished.rename(there)
    shutil.rmtree(archives)


def _make_image(folder: Path, image: Path, size: str) -> None:
    mke2fs = shutil.which("mke2fs", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if mke2fs is None:
        raise CannotError("there is no mke2fs here")
    unfinished = image.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    options = ["-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0"]
    _run("mke2fs", [mke2fs, *options, "-d", str(folder), str(unfinished), size])
    unfinished.rename(image)


def _output_of(*command: str) -> str:
    return _run(command[0], command)


def _run(name: str, command: Sequence[str], folder: Path | None = None) -> str:
    """Return the output of a command.

    Raises:
        CannotError: it is not installed, or fails.

    """
    try:
        ended = subprocess.run(
            command, cwd=folder, timeout=300, capture_output=True, text=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotError(f"{name}: {error}") from None
    if ended.returncode:
        raise CannotError(f"{name} failed: {ended.stderr.strip()[-500:]}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
