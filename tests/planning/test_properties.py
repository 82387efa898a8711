"""What is true of every plan, on machines that hypothesis draws."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import combinations
from random import Random

from clusterrun.cpuset import CpuSet
from clusterrun.job.options import NumaBinding, NumaMemory
from clusterrun.machine.machine import Machine
from clusterrun.planning.binding import threads_per_worker
from clusterrun.planning.placement import Placement
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from msgspec.structs import replace

from tests.planning.binding_checks import check_core_shares, check_suggested_mode, check_tasks
from tests.planning.generated import FEATURES, Generated, machines
from tests.plans import BindingOptions, bind, machine

DIVIDING = [mode for mode in NumaBinding if mode.divides]
AT_NODES = [NumaBinding.NODE, *DIVIDING]
MANY = settings(max_examples=2000, phases=[Phase.generate], database=None)
PER_WORKER = st.none() | st.integers(1, 4)
OPTIONS = st.builds(
    BindingOptions,
    st.sampled_from(NumaBinding),
    st.sampled_from(NumaMemory),
    PER_WORKER,
)


def test_strategy_draws_every_feature() -> None:
    """A test proves nothing about features that never occur."""
    missing = set(FEATURES)

    def is_the_last(made: Generated) -> bool:
        missing.difference_update(made.features)
        return not missing

    with suppress(NoSuchExample):
        find(machines(), is_the_last, settings=MANY, random=Random(0))

    assert missing == set()


@given(machines(), OPTIONS, st.integers(1, 10))
def test_masks(made: Generated, options: BindingOptions, workers: int) -> None:
    """With any options, a worker is bound to CPUs and memory that it may use, or not bound."""
    here = made.machine
    found = bind(options, here, workers)

    assert len(found) == workers
    assert found == bind(options, here, workers)
    nodes = {node.id: node for node in here.nodes}
    for each in found:
        assert each.cpus is None or (each.cpus and each.cpus <= here.allowed)
        assert (each.cpus is None) == (each.numa_nodes == ())
        if each.memory is not None:
            assert each.memory.nodes
            assert all(nodes[at].has_memory and nodes[at].cpus for at in each.memory.nodes)
            around = _known_nodes(each) if each.gpus else set(each.local_nodes)
            if options.memory is NumaMemory.BIND and options.mode is not NumaBinding.NONE:
                cpus = each.cpus or here.allowed
                around |= {at for at, node in nodes.items() if node.cpus & cpus}
            usable = {at for at in around if nodes[at].has_memory and nodes[at].cpus}
            assert set(each.memory.nodes) == usable


@given(machines(), st.sampled_from(AT_NODES), st.integers(1, 10), PER_WORKER)
def test_nodes(made: Generated, mode: NumaBinding, workers: int, each_has: int | None) -> None:
    """A worker is bound to the nodes of its GPUs, and not bound if one of them is unknown."""
    here = made.machine
    for found in bind(BindingOptions(mode, gpus_per_worker=each_has), here, workers):
        if found.gpus and found.cpus is not None:
            assert all(gpu.numa_node is not None for gpu in found.gpus)
            assert found.cpus <= _reach(here, _known_nodes(found))
            assert set(found.numa_nodes) == _known_nodes(found)


@given(machines(), st.sampled_from(DIVIDING), st.integers(1, 10), PER_WORKER)
def test_division(made: Generated, mode: NumaBinding, workers: int, each_has: int | None) -> None:
    """Divided CPUs are disjoint and whole cores; they are shared only if there are too few cores."""
    here = made.machine
    found = bind(BindingOptions(mode, gpus_per_worker=each_has), here, workers)
    own = [
        each
        for each in found
        if each.cpus is not None and "shares its NUMA node" not in each.warning
    ]

    for one, other in combinations(own, 2):
        assert not (one.cpus or CpuSet()) & (other.cpus or CpuSet())
    for each in own:
        reach = _reach(here, each.numa_nodes)
        for core in here.cores:
            part = core & (each.cpus or CpuSet())
            assert not part or part == core & here.allowed & reach
    for each in found:
        if "shares its NUMA node" in each.warning:
            assert not here.cores_known or _is_short_of_cores(here, found, each)


@given(machines(), st.integers(1, 10), PER_WORKER)
def test_near(made: Generated, workers: int, each_has: int | None) -> None:
    """Each idle node is added once and whole, within its package, and no worker loses CPUs."""
    here = made.machine
    by_node = bind(BindingOptions(NumaBinding.NODE, gpus_per_worker=each_has), here, workers)
    near = bind(BindingOptions(NumaBinding.NEAR, gpus_per_worker=each_has), here, workers)
    hidden = len(here.visible) < len(here.pci_gpus)
    for before, after in zip(by_node, near, strict=True):
        if before.cpus:
            assert before.cpus <= (after.cpus or here.allowed)
    if made.features & {"overlapping nodes", "equal nodes"} or any(it.warning for it in near):
        return
    shown = {gpu.bdf for gpu in here.visible}
    of_hidden = {gpu.numa_node for gpu in here.pci_gpus if gpu.bdf not in shown}
    taken = CpuSet.union_of(each.cpus or () for each in by_node) | _reach(
        here, [node.id for node in here.nodes if node.id in of_hidden]
    )
    for before, after in zip(by_node, near, strict=True):
        # A worker whose node has no CPU for it takes idle nodes, but not those of hidden GPUs.
        assert before.cpus or not (after.cpus or CpuSet()) & taken
    bound = [(node.numa_nodes, found.cpus) for node, found in zip(by_node, near, strict=True)]
    alone = [(nodes, cpus) for nodes, cpus in bound if cpus and len(nodes) == 1]
    for (nodes, cpus), (others, their) in combinations(alone, 2):
        assert nodes == others or not cpus & their
        assert nodes != others or cpus == their
    for nodes, cpus in alone:
        around = CpuSet.union_of(it for it in here.packages if it & _reach(here, nodes))
        assert cpus <= around
    used = CpuSet.union_of(found.cpus or () for found in near)
    owned = {number for found in by_node for number in found.numa_nodes}
    for package in here.packages if all(found.cpus for found in near) and not hidden else ():
        if any(node.id in owned and node.cpus & package for node in here.nodes):
            assert package & here.allowed <= used


@given(machines(), st.integers(1, 40))
def test_spread(made: Generated, workers: int) -> None:
    """Moving a worker to another NUMA node never gives the worker with the fewest cores more."""
    here = replace(made.machine, visible=())
    found = bind(BindingOptions(NumaBinding.NODE), here, workers)
    if any(each.cpus is None for each in found):
        return
    cores = {
        node.id: sum(1 for core in here.cores if core & node.cpus & here.allowed)
        for node in here.nodes
        if node.cpus & here.allowed
    }
    placed = Counter(node for each in found for node in each.numa_nodes)
    poorest = min(cores[node] / count for node, count in placed.items())

    assert [each.numa_nodes for each in found] == sorted(each.numa_nodes for each in found)
    assert all(cores[node] / (placed[node] + 1) <= poorest for node in cores)


@given(machines(), st.integers(1, 16), PER_WORKER)
def test_workers_have_enough_cores(
    made: Generated, workers: int, gpus_per_worker: int | None
) -> None:
    """Binding by default never leaves a worker with less."""
    check_core_shares(made.machine, workers, gpus_per_worker)


@given(machines(), st.sampled_from(NumaBinding), st.integers(1, 10), PER_WORKER)
def test_suggested_mode_uses_idle_cpus(
    made: Generated, mode: NumaBinding, workers: int, gpus_per_worker: int | None
) -> None:
    """No warning names a mode that changes nothing."""
    check_suggested_mode(made.machine, mode, workers, gpus_per_worker)


@given(machines(), st.sampled_from(NumaBinding), st.sampled_from(NumaMemory), st.integers(1, 3))
def test_tasks(made: Generated, mode: NumaBinding, memory: NumaMemory, slices: int) -> None:
    """Tasks and a single agent give the same binding."""
    check_tasks(made.machine, mode, memory, slices)


@given(st.integers(1, 16), st.sampled_from(NumaBinding))
def test_threads_of_all_workers_never_exceed_the_cores(workers: int, mode: NumaBinding) -> None:
    """This holds while there is a core for each worker."""
    here = machine({0: "0-7", 1: "8-15"})

    assert threads_per_worker(here, bind(BindingOptions(mode), here, workers)) * workers <= 16


def _known_nodes(found: Placement) -> set[int]:
    return {gpu.numa_node for gpu in found.gpus if gpu.numa_node is not None}


def _reach(here: Machine, ids: Iterable[int]) -> CpuSet:
    """Return the CPUs of these nodes, and of those that share CPUs with them."""
    cpus = CpuSet.union_of(node.cpus for node in here.nodes if node.id in set(ids))
    return CpuSet.union_of([cpus, *(node.cpus for node in here.nodes if node.cpus & cpus)])


def _is_short_of_cores(here: Machine, found: Iterable[Placement], shared: Placement) -> bool:
    """Whether some node of the worker has fewer cores than there are GPUs, or workers, to divide by."""
    for number in shared.numa_nodes:
        reach = _reach(here, [number])
        own = CpuSet.union_of(node.cpus for node in here.nodes if node.id == number)
        cores = sum(1 for core in here.cores if core & here.allowed & own)
        ids = {node.id for node in here.nodes if node.cpus & reach}
        gpus = sum(1 for gpu in here.pci_gpus if gpu.numa_node in ids)
        workers = sum(1 for each in found if ids & set(each.numa_nodes))
        if cores < max(gpus, workers):
            return True
    return False
