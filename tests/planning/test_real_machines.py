"""Masks on real machines, from copies of their /sys."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest
from clusterrun.cpuset import CpuSet
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.machine.inspect import inspect
from clusterrun.machine.tree import Tree

from tests.planning.binding_checks import check_core_shares, check_suggested_mode, check_tasks
from tests.plans import BindingOptions, bind, job, planned
from tests.real_machines import captured, each, recommended, tree_at

RealMachine = Callable[[str], Path]


@each(("name",), [[name] for name in sorted({name for name, *_ in recommended()})])
def test_recorded_machine_with_a_partial_cpuset(real_machine: RealMachine, name: str) -> None:
    """Binding makes no worker's share worse, and what a warning names helps."""
    whole, choice = inspect(Tree(real_machine(name)), {}, None, "replayed"), Random(name)
    for part in (0.9, 0.5, 0.1):
        some = CpuSet(cpu for cpu in sorted(whole.allowed) if choice.random() < part)
        seen = whole.visible[choice.randrange(len(whole.visible)) :]
        here = msgspec.structs.replace(whole, allowed=some or whole.allowed, visible=seen)
        for workers in (1, len(seen)):
            check_core_shares(here, workers, None)
            for mode in NumaBinding:
                check_suggested_mode(here, mode, workers, None)
        check_tasks(here, choice.choice(list(NumaBinding)), NumaMemory.BIND)


@pytest.mark.parametrize("name", captured())
def test_masks_of_recorded_machines(real_machine: RealMachine, name: str) -> None:
    """Even in hostile trees, masks contain only CPUs that are online and allowed."""
    here = inspect(tree_at(real_machine(name)), {}, None, "replayed")
    online = CpuSet.union_of(here.cores)

    assert here.allowed <= online
    assert all(node.cpus <= online for node in here.nodes)
    workers = len(here.visible) or 4
    for mode in NumaBinding:
        assert planned(job(numa_binding=mode), here, workers).env["OMP_NUM_THREADS"].isdecimal()
        for found in bind(BindingOptions(mode, NumaMemory.BIND), here, workers):
            assert found.cpus is None or (found.cpus and found.cpus <= here.allowed)
            assert set(found.memory.nodes if found.memory else ()) <= {
                node.id for node in here.nodes if node.cpus and node.has_memory
            }
