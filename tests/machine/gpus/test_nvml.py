"""The GPUs that NVML lists, queried in a child, so that a hanging driver does not delay the launcher."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from clusterrun.machine.gpus.nvml import gpus_in, run_query
from clusterrun.machine.machine import Gpu, Hints
from msgspec.structs import replace

from tests.as_another_user import run_as_another_user
from tests.imports import imports
from tests.machine.nvml_answers import part, whole

pytestmark = pytest.mark.usefixtures("no_child_left")

TWO = [whole(0, hints=Hints("0-3", "0")), whole(1)]

FAKE_NVML = """
NVML_AFFINITY_SCOPE_NODE = 0
class NVMLError(Exception): pass
class PciInfo:
    def __init__(self, busId): self.busId = busId
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 4
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: raise NVMLError("Insufficient Permissions")
    return index
def nvmlDeviceGetPciInfo(handle):
    if handle == 3: raise NVMLError("Not Supported")
    return PciInfo(["0000:17:00.0", "", b"0000:99:00.0"][handle])
def nvmlDeviceGetUUID(handle): return {0: "GPU-0", 2: b"GPU-2", 3: "GPU-3", 25: "MIG-5"}[handle]
def nvmlDeviceGetName(handle): return {25: "NVIDIA A100 MIG 1g.5gb"}.get(handle, b"NVIDIA A100")
def nvmlDeviceGetCpuAffinityWithinScope(handle, words, scope):
    assert (words, scope) == (64, 0)
    return [0xf, 1] + [0] * 62
def nvmlDeviceGetMemoryAffinity(handle, words, scope):
    if handle == 3: raise NVMLError("Not Supported")
    return [2] + [0] * 63
def nvmlDeviceGetMigMode(handle):
    if handle == 3: raise NVMLError("Not Supported")
    return [handle == 2, 0]
def nvmlDeviceGetMaxMigDeviceCount(handle): return 7
def nvmlDeviceGetMigDeviceHandleByIndex(handle, place):
    if place != 5: raise NVMLError("Not Found")
    return 10 * handle + place
def nvmlDeviceGetGpuInstanceId(handle): return 9
def nvmlDeviceGetComputeInstanceId(handle): return 0
"""


def asked(question: Callable[[], Iterable[Any]] | None = None) -> tuple[Gpu, ...]:
    return gpus_in(run_query(question, 60.0))


def test_gpus_are_in_nvml_order() -> None:
    """It has the facts of each GPU."""
    assert asked(lambda: TWO) == tuple(TWO)


@pytest.mark.usefixtures("pynvml")
def test_gpu_facts_from_nvml() -> None:
    """A GPU that NVML does not let us use is excluded; old versions of pynvml return bytes."""
    near = Hints("0-3,64", "1")
    last = whole(2, "GPU-3", model="NVIDIA A100", hints=Hints("0-3,64"))

    (first, second, third, its_slice) = asked()

    assert first == whole(0, "GPU-0", "0000:17:00.0", "NVIDIA A100", near)
    assert second == whole(1, "GPU-2", "0000:99:00.0", "NVIDIA A100", near)
    assert (third.bdf, third.uuid, third.hints) == ("", "GPU-3", last.hints)
    assert (its_slice.index, its_slice.bdf, its_slice.hints) == (1, "0000:99:00.0", near)
    assert (its_slice.uuid, its_slice.model) == ("MIG-5", "NVIDIA A100 MIG 1g.5gb")
    assert (its_slice.parent, its_slice.legacy_name) == ("GPU-2", "MIG-GPU-2/9/0")


@pytest.mark.parametrize(
    "answer", ["", "[", '[{"index":0,"bdf":""},', '[{"bdf":""}]', '{"index":0}', "GPU-a\nend"]
)
def test_a_damaged_answer_lists_no_gpu(answer: str) -> None:
    """The answer may be cut off, or a user may have edited a capture."""
    assert gpus_in(answer) == ()


def test_slices_follow_the_whole_gpus() -> None:
    """In an edited answer one may belong to no GPU."""
    first, second = TWO
    stray = part(whole(2, "GPU-none"), "MIG-y")

    found = asked(lambda: [first, part(first, "MIG-x"), second, stray])

    assert found == (first, second, part(first, "MIG-x"))


@pytest.mark.parametrize(
    ("address", "expected"),
    [("00000000:17:00.0", "0000:17:00.0"), ("0000:E1:00.0", "0000:e1:00.0"), ("x", ""), ("", "")],
)
def test_nvml_addresses_are_normalised(address: str, expected: str) -> None:
    """NVML writes eight digits of domain; an edited answer may have none of its addresses."""
    (found,) = asked(lambda: [replace(TWO[0], bdf=address)])

    assert found.bdf == expected


def test_nvml_may_list_no_gpu() -> None:
    """A machine may have the driver and no GPU."""
    assert asked(lambda: ()) == ()


@pytest.mark.needs("root", "setpriv", "prlimit")
def test_no_answer_if_no_process_can_be_started() -> None:
    """Other code that needs a process reports the limit."""
    code = imports(run_query) + "print([run_query(lambda: ())])"

    done = run_as_another_user(code, processes=1)

    assert (done.stdout, done.stderr) == ("['']\n", "")
