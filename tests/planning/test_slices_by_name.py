"""The command in the warning about MIG slices works."""

from pathlib import Path

import pytest
from clusterrun.machine.inspect import inspect
from clusterrun.machine.machine import Gpu
from clusterrun.machine.tree import KernelAnswers, Tree
from clusterrun.planning.job_machine import machine_for
from clusterrun.planning.worker_slots import local_size
from msgspec import json
from msgspec.structs import replace

from tests.machine_trees import MachineFacts, write_files, write_tree
from tests.plans import job

WHOLE = Gpu(0, "0000:17:00.0", "GPU-0", vendor="nvidia", listed_by="NVML")


@pytest.mark.parametrize(
    "uuids",
    [
        ["MIG-0123abcd-1", "MIG-0123ABCE-1", "MIG-0999ffff-1"],
        ["MIG-abcd", "MIG-ABCDEF", "MIG-abcdefff"],
        [f"MIG-{at}0000000-1111-2222-3333-444444444444" for at in range(7)],
        [f"MIG-{at}-1111-2222-3333-444444444444" for at in range(10000000, 10000056)],
    ],
    ids=["own-beginnings", "one-begins-another", "seven", "more-than-are-named"],
)
def test_suggested_slices_are_valid_devices(tmp_path: Path, uuids: list[str]) -> None:
    """Pasted, they give each slice a worker, or each of the first, if there are many."""
    parts = [replace(WHOLE, uuid=uuid, parent=WHOLE.uuid) for uuid in uuids]
    answer = json.encode([WHOLE, *parts]).decode()
    write_files(write_tree(tmp_path, MachineFacts()), {"proc/driver/nvidia/version": ""})
    machine = inspect(Tree(tmp_path, KernelAnswers(answer={"nvml": answer})), {}, None, "")
    _, _, typed = machine.visible_warning.partition("--devices ")
    names, option, *_ = typed.split()

    pasted = job(devices=tuple(names.split(",")), virtual_local_rank=True)
    found = machine_for(pasted, machine)

    assert option == "--virtual-local-rank"
    assert [gpu.uuid for gpu in found.visible] == uuids[: len(found.visible)]
    assert local_size(pasted, found) == len(names.split(",")) == min(len(uuids), 7)
