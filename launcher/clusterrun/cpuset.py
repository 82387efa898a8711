"""Sets of CPU numbers, and the kernel's list form of them, "0-3,8"."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

MAX_CPUS = 2**16
"""No kernel has CPUs or NUMA nodes above this: a list with such a number is damaged or hostile."""

MAX_LISTED = 2 * MAX_CPUS
"""CPUs in one list, counting repeated ones. The kernel lists each CPU once."""


class CpuSet(frozenset[int]):
    """A set of logical CPU numbers. ``str`` returns its list form, as in /sys and taskset."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the kernel's list form: "0-3,8", or "" for the empty set.

        Raises:
            ValueError: the text is not such a list.

        """
        cpus: set[int] = set()
        listed = 0
        for part in text.strip().split(","):
            if not part.strip():
                continue
            first, _, last = part.partition("-")
            low, high = int(first), int(last or first)
            if low < 0 or high < low or high >= MAX_CPUS:
                message = f"{part.strip()!r} is not a range of CPUs"
                raise ValueError(message)
            listed += high - low + 1
            if listed > MAX_LISTED:
                raise ValueError("it names the same CPUs again and again")
            cpus.update(range(low, high + 1))
        return cls(cpus)

    @classmethod
    def union_of(cls, sets: Iterable[Iterable[int]]) -> Self:
        return cls(cpu for cpus in sets for cpu in cpus)

    def __str__(self) -> str:
        return ",".join(number_ranges(self))

    def __repr__(self) -> str:
        return f"CpuSet({str(self)!r})"


def own_cpus() -> CpuSet:
    """Return the CPU affinity of this process, even in a sandbox that refuses sched_getaffinity."""
    try:
        return CpuSet(os.sched_getaffinity(0))
    except OSError:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        [allowed] = [line for line in lines if line.startswith("Cpus_allowed_list:")]
        # Cpus_allowed_list may include offline CPUs.
        online = Path("/sys/devices/system/cpu/online").read_text(encoding="utf-8")
        return CpuSet(CpuSet.parse(allowed.partition(":")[2]) & CpuSet.parse(online))


def number_ranges(numbers: Iterable[int]) -> list[str]:
    """Return sorted ``numbers`` as ranges: ["0-3", "8"]."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [f"{low}-{high}" if low != high else f"{low}" for low, high in found]
