"""Masks with fewer cores than workers, though the job may use other cores (docs/binding.md, decision 8)."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.planning.binding.cores import CoreCounter


class Shortage(NamedTuple):
    """The workers that can run nowhere but in one mask."""

    workers: int
    cores: str
    """The cores that they share: ``1 core (CPUs 16) of the 17 that this job may use``."""


def shortages(machine: Machine, masks: Sequence[CpuSet]) -> Mapping[CpuSet, Shortage]:
    """Return the masks with fewer cores than workers, while other allowed cores have fewer workers each.

    On a machine with too few cores for all workers, no mask counts if all are equally full.
    ``masks`` has the CPUs of each worker; empty if it is not bound.
    """
    return dict(_shortages(machine, Counter(masks)))


def _shortages(
    machine: Machine, workers: Mapping[CpuSet, int]
) -> Iterator[tuple[CpuSet, Shortage]]:
    counter = CoreCounter(machine)
    total, allowed = sum(workers.values()), counter.count(machine.allowed)
    for mask in filter(None, workers):
        inside = sum(count for other, count in workers.items() if other and other <= mask)
        cores = counter.count(mask)
        if inside > cores and inside * (allowed - cores) > (total - inside) * cores:
            plural = "" if cores == 1 else "s"
            share = f"{cores} core{plural} (CPUs {mask}) of the {allowed} that this job may use"
            yield mask, Shortage(inside, share)
