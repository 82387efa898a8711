"""Masks on machines that exist, replayed from what their /sys said."""

from pathlib import Path

import pytest

from launcher.domain.cpuset import CpuSet
from launcher.domain.job import NumaBinding
from launcher.machine.inspect import inspect
from launcher.planning.binding import Wish, place
from tests.real_machines import captured, recommended, tree_of, unpacked


def masks(root: Path, mode: str, environ: dict[str, str]) -> list[str]:
    """Return the CPUs of one worker for each visible GPU."""
    here = inspect(root, environ, None, "replayed")
    return [str(found.cpus) for found in place(Wish(NumaBinding(mode)), here, len(here.visible))]


@pytest.mark.parametrize(("name", "mode", "expected"), recommended())
def test_masks_are_the_recommended_ones(
    tmp_path: Path, name: str, mode: str, expected: list[str]
) -> None:
    """One worker for each GPU, in the vendor's order."""
    assert masks(tree_of(name, tmp_path), mode, {}) == expected


@pytest.mark.parametrize(
    ("name", "expected"), [(name, masks) for name, mode, masks in recommended() if mode == "node"]
)
def test_workers_follow_a_reversed_list(tmp_path: Path, name: str, expected: list[str]) -> None:
    """CUDA_VISIBLE_DEVICES=7,0 gives local rank 0 the last GPU's node."""
    last = len(expected) - 1

    found = masks(tree_of(name, tmp_path), "node", {"CUDA_VISIBLE_DEVICES": f"{last},0"})

    assert found == [expected[last], expected[0]]


@pytest.mark.parametrize("name", captured())
def test_captured_trees_give_cpus_that_are_there(tmp_path: Path, name: str) -> None:
    """However hostile a tree is, masks hold CPUs that are online and allowed."""
    here = inspect(unpacked(name, tmp_path), {}, None, "replayed")
    online = CpuSet.union_of(here.cores)

    places = place(Wish(NumaBinding.NEAR), here, len(here.visible) or 4)

    assert here.allowed <= online
    assert all(node.cpus <= online for node in here.nodes)
    assert all(found.cpus is None or found.cpus <= here.allowed for found in places)


@pytest.mark.skipif("nvidiagpunumanodes.tar.xz" not in captured(), reason="not at hand")
def test_a_power9_machine_whose_gpus_have_memory_nodes(tmp_path: Path) -> None:
    """Six GPUs, told by local_cpus alone; a job that may use one socket binds three of them."""
    root = unpacked("nvidiagpunumanodes.tar.xz", tmp_path)
    here = inspect(root, {}, CpuSet(range(16)), "replayed")

    found = place(Wish(NumaBinding.AUTO), here, 6)

    assert [str(place.cpus) for place in found] == ["0-15"] * 3 + ["None"] * 3
    assert found[3].remark == "not bound: GPU 3 is local to node 8 but this job may only use 0-15"
