"""Sets of CPUs as people read them: strides, and the siblings of many cores at once."""

from collections.abc import Iterable, Sequence

from clusterrun.domain.cpuset import CpuSet, runs


def strided(numbers: Iterable[int]) -> str:
    """Return numbers as runs, "0-3", and as runs with a stride, "0-30:2", as taskset takes them."""
    ordered = sorted(numbers)
    parts = []
    while ordered:
        length, step = _longest(ordered)
        taken, ordered = ordered[:length], ordered[length:]
        if step == 1 or length < 3:
            parts += runs(taken)
        else:
            parts.append(f"{taken[0]}-{taken[-1]}:{step}")
    return ",".join(parts)


def _longest(ordered: Sequence[int]) -> tuple[int, int]:
    """Return length and step of the run that ``ordered`` begins with; of two alone, one is enough."""
    if len(ordered) < 2:
        return len(ordered), 1
    step = ordered[1] - ordered[0]
    length = 2
    while length < len(ordered) and ordered[length] - ordered[length - 1] == step:
        length += 1
    return (length, step) if step == 1 or length > 2 else (1, 1)


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
