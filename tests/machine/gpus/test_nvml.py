"""NVML is queried in a child; the launcher continues in time whatever the child does."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.as_another_user import run_as_another_user
from tests.imports import imports
from tests.machine.door import (
    HUNG,
    NvmlGpu,
    Question,
    ask_in_child,
    from_nvml,
    gpus_in,
)

TWO = [
    NvmlGpu("00000000:17:00.0", "GPU-a", "NVIDIA H200", cpus="0-3", nodes="0"),
    NvmlGpu("00000000:99:00.0", "GPU-b"),
]

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


def asked(question: Question | None = None, timeout: float = 10.0) -> tuple[NvmlGpu, ...]:
    return gpus_in(ask_in_child(question, timeout))


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    """Check that no test leaves a child, dead or alive."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def test_the_answer_comes_in_order() -> None:
    """It has the facts of each GPU."""
    assert asked(lambda: TWO) == tuple(TWO)


def test_the_facts_that_nvml_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that NVML does not let us use is left out; old versions of pynvml return bytes."""
    (tmp_path / "pynvml.py").write_text(FAKE_NVML)
    monkeypatch.syspath_prepend(tmp_path)
    # Another test may have imported the real one.
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)

    found = asked()

    near = {"cpus": "0-3,64", "nodes": "1"}
    assert found == (
        NvmlGpu("0000:17:00.0", "GPU-0", "NVIDIA A100", **near),
        NvmlGpu("0000:99:00.0", "GPU-2", "NVIDIA A100", **near),
        NvmlGpu(
            "0000:99:00.0",
            "MIG-5",
            "NVIDIA A100 MIG 1g.5gb",
            **near,
            parent="GPU-2",
            legacy_name="MIG-GPU-2/9/0",
        ),
        NvmlGpu("", "GPU-3", "NVIDIA A100", cpus="0-3,64"),
    )


def test_a_damaged_answer_lists_no_gpu() -> None:
    """A user may have edited a capture."""
    assert gpus_in("") == ()
    assert gpus_in("0000:17:00.0 GPU-a\nend") == ()


def test_gpus_of_nvml_become_devices() -> None:
    """NVML's order numbers the whole GPUs; slices follow, with the number of their GPU."""
    first, second = TWO
    part = first._replace(uuid="MIG-x", parent="GPU-a", legacy_name="MIG-GPU-a/1/0")

    found = from_nvml((first, part, second, part._replace(uuid="MIG-y", parent="GPU-none")))

    assert [(device.number, device.bdf, device.uuid) for device in found] == [
        (0, "0000:17:00.0", "GPU-a"),
        (1, "0000:99:00.0", "GPU-b"),
        (0, "0000:17:00.0", "MIG-x"),
    ]
    assert str(found[0].cpus) == "0-3"
    assert found[0].nodes == {0}
    assert (found[2].parent, found[2].legacy_name) == ("GPU-a", "MIG-GPU-a/1/0")


def test_nvml_may_list_no_gpu() -> None:
    """A machine may have the driver and no GPU."""
    assert asked(lambda: ()) == ()


def test_a_child_that_hangs_is_killed() -> None:
    """The library hangs on a broken GPU."""
    began = time.monotonic()

    found = ask_in_child(_hang, timeout=0.2)

    assert found == HUNG
    assert gpus_in(found) == ()
    assert time.monotonic() - began < 10


def _hang() -> Iterable[NvmlGpu]:
    yield TWO[0]
    select.select([], [], [])


def test_a_child_that_raises_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """A missing or broken library prints nothing: the next source is used."""
    found = asked(_raise)

    assert found == ()
    assert capfd.readouterr() == ("", "")


def _raise() -> Iterable[NvmlGpu]:
    yield TWO[0]
    raise ImportError


def test_a_child_that_crashes_is_no_answer() -> None:
    """A library of another version than the driver may crash."""
    assert asked(_crash) == ()


def _crash() -> Iterable[NvmlGpu]:
    yield TWO[0]
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_library_that_ends_the_process_ends_only_the_child() -> None:
    """Even sys.exit ends only the child."""
    assert asked(lambda: sys.exit(3)) == ()


@pytest.mark.needs("root", "setpriv", "prlimit")
def test_no_answer_if_no_process_can_be_started() -> None:
    """Other code that needs a process reports the limit."""
    code = imports(ask_in_child) + "print([ask_in_child(lambda: ())])"

    done = run_as_another_user(code, processes=1)

    assert (done.stdout, done.stderr) == ("['']\n", "")


def test_a_signal_to_both_is_handled_once(tmp_path: Path) -> None:
    """The child also gets Ctrl-C, and must not run the launcher's handlers."""
    seen = tmp_path / "seen"
    before = signal.signal(signal.SIGUSR1, lambda *_: _append(seen))
    try:
        found = asked(_signal_itself)
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert found == tuple(TWO)
    assert seen.read_text() == f"{os.getpid()}\n"


def _append(path: Path) -> None:
    with path.open("a") as file:
        file.write(f"{os.getpid()}\n")


def _signal_itself() -> Iterable[NvmlGpu]:
    os.kill(os.getpid(), signal.SIGUSR1)
    return TWO


def test_the_child_holds_none_of_our_connections() -> None:
    """The child must not hold the fork server's socket open."""
    reading, writing = os.pipe()

    found = asked(lambda: [NvmlGpu(str(_is_open(writing)), "")])
    os.close(reading)
    os.close(writing)

    assert found == (NvmlGpu("False", ""),)


def _is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


def test_our_signal_mask_is_restored() -> None:
    """Signals are blocked only during the fork."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    ask_in_child(lambda: TWO)

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_child_ends_after_its_parent_is_killed() -> None:
    """The child's own alarm ends it."""
    reading, telling = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            os.dup2(telling, 1)
            ask_in_child(_tell_and_hang, timeout=0.5)
        finally:
            os._exit(0)
    os.close(telling)
    hanging = os.read(reading, 20)
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)

    # The child's standard output is the other end: it closes when the child has gone.
    ready, _, _ = select.select([reading], [], [], 10)
    left = os.read(reading, 1) if ready else None
    os.close(reading)

    assert hanging == b"hanging"
    assert left == b""


def _tell_and_hang() -> Iterable[NvmlGpu]:
    os.write(1, b"hanging")
    select.select([], [], [])
    return TWO
