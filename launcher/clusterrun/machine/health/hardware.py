"""Checks of CPUs and GPUs: what makes one node slower than the others."""

from collections.abc import Iterator, Sequence

from clusterrun.domain.machine import Machine
from clusterrun.machine.health.finding import Finding, failure, warning, well
from clusterrun.machine.tree import Tree

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
    if machine.visible_remark:
        yield warning("GPUs", machine.visible_remark, "check CUDA_VISIBLE_DEVICES")
    else:
        yield well("GPUs", f"{len(machine.visible)} visible of {len(machine.gpus)}")
    if "+cpu" in torch:
        yield failure("torch", f"{torch} can't use GPUs", "install the build for your driver")
    unknown = [str(gpu.index) for gpu in machine.gpus if gpu.numa_node is None]
    if unknown and len(machine.nodes) > 1:
        words = f"unknown of GPU {', '.join(unknown)}"
        yield warning("NUMA node of GPUs", words, "name them by --numa-map: see clusterrun topo")
    for gpu in machine.gpus:
        place = f"sys/bus/pci/devices/{gpu.bdf}"
        now, most = (tree.integer(f"{place}/{which}_link_width") for which in ("current", "max"))
        if now and most and now < most:
            advice = "seat the card or its riser anew: its copies take longer than on other nodes"
            yield failure(f"link of GPU {gpu.index}", f"x{now} of x{most}", advice)
