"""Workers that share too few cores, though this job may use others that are less crowded."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from clusterrun.domain.cpuset import CpuSet
from clusterrun.domain.machine import Machine
from clusterrun.planning.binding.core_counts import CoreCounter


class Crowd(NamedTuple):
    """The workers that can run within a mask only."""

    workers: int
    cores: str
    """What they share: ``1 core (CPUs 16) of the 17 that this job may use``."""


def crowds(machine: Machine, masks: Sequence[CpuSet]) -> Mapping[CpuSet, Crowd]:
    """Return the masks with fewer cores than workers, while other allowed cores have fewer workers.

    On a machine that has too few cores for all workers no mask is crowded if each is as full.

    Args:
        machine: what there is.
        masks: the CPUs of each worker; empty if it is not bound.

    """
    return dict(_crowds(machine, Counter(masks)))


def _crowds(machine: Machine, workers: Mapping[CpuSet, int]) -> Iterator[tuple[CpuSet, Crowd]]:
    counter = CoreCounter(machine)
    everyone, allowed = sum(workers.values()), counter.count(machine.allowed)
    for mask in filter(None, workers):
        inside = sum(count for other, count in workers.items() if other and other <= mask)
        cores = counter.count(mask)
        if inside > cores and inside * (allowed - cores) > (everyone - inside) * cores:
            plural = "" if cores == 1 else "s"
            share = f"{cores} core{plural} (CPUs {mask}) of the {allowed} that this job may use"
            yield mask, Crowd(inside, share)
