"""Sets of CPUs as people read them: strides, and the siblings of many cores at once."""

from collections.abc import Iterable
from itertools import count, takewhile

from clusterrun.domain.cpuset import CpuSet, runs


def strided(numbers: Iterable[int]) -> str:
    """Return numbers as runs, "0-3", and as runs with a stride, "0-30:2", as taskset takes them."""
    ordered = sorted(numbers)
    parts = []
    while ordered:
        step = ordered[1] - ordered[0] if len(ordered) > 1 else 1
        progression = zip(ordered, count(ordered[0], step), strict=False)
        length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], progression))
        if step > 1 and length > 2:
            parts.append(f"{ordered[0]}-{ordered[length - 1]}:{step}")
        else:
            # The second of two alone may begin a longer run.
            length = length if step == 1 else 1
            parts += runs(ordered[:length])
        ordered = ordered[length:]
    return ",".join(parts)


def siblings(cores: Iterable[CpuSet]) -> str:
    """Return cores with the CPUs of each, the first of every core before all seconds.

    Core n of "0-15+128-143" has CPUs n and n + 128; siblings beside each other are runs, "0-87".
    """
    known = list(cores)
    beside = [core for core in known if max(core) - min(core) < len(core)]
    apart = [core for core in known if core not in beside]
    parts = [strided(CpuSet.union_of(beside))] if beside else []
    for width in sorted({len(core) for core in apart}):
        alike = sorted(sorted(core) for core in apart if len(core) == width)
        parts.append("+".join(strided(lane) for lane in zip(*alike, strict=True)))
    return ",".join(parts)
