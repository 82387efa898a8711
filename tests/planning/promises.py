"""What binding promises to each worker, on any machine."""

from collections.abc import Sequence

from tests.planning.door import BindingOptions, CpuSet, Machine, NumaBinding, place
from tests.plans import job, planned


def check_room(here: Machine, workers: int, each_has: int | None) -> None:
    """By default no worker has under half of its even share, or of a core that it could have.

    If there are GPUs that the job does not see, all that it does not use may have workers of others.
    """
    found = place(BindingOptions(NumaBinding.AUTO, gpus_per_worker=each_has), here, workers)
    bus = {gpu.bdf for gpu in here.pci_gpus}
    unused = bus - {gpu.bdf for each in found for gpu in each.gpus}
    others = len(unused) if bus - {gpu.bdf for gpu in here.visible} else 0
    cores = _cores(here, here.allowed)
    for mask in {each.cpus for each in found if each.cpus}:
        inside = sum(1 for each in found if each.cpus and each.cpus <= mask)
        share = _cores(here, mask) / inside

        assert share >= cores / (workers + others) / 2
        if any(each.gpus for each in found if each.cpus == mask):
            assert share >= min(1.0, cores / workers)
    for each in found:
        if "without binding" in each.remark:
            assert each.cpus is None


def _cores(here: Machine, cpus: CpuSet) -> int:
    return sum(1 for core in here.cores if core & cpus)


def check_hint(here: Machine, mode: NumaBinding, workers: int, each_has: int | None) -> None:
    """A mode that a remark names uses more CPUs for this very job, and leaves nobody with less."""
    plan = planned(job(numa_binding=mode, gpus_per_worker=each_has), here, workers)
    for remark in plan.remarks:
        if "--numa-binding" not in remark:
            continue
        named = NumaBinding(remark.rpartition(" ")[2])
        now = [each.cpus or here.allowed for each in plan.workers]
        there = place(BindingOptions(named, gpus_per_worker=each_has), here, workers)
        then = [each.cpus or here.allowed for each in there]

        assert len(CpuSet.union_of(then)) > len(CpuSet.union_of(now))
        for mask, other in zip(now, then, strict=True):
            assert _share(here, other, then) >= _share(here, mask, now)


def _share(here: Machine, mask: CpuSet, masks: Sequence[CpuSet]) -> float:
    return _cores(here, mask) / sum(1 for other in masks if other <= mask)
