"""NVML in a child: whatever happens there, the launcher goes on in time."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from launcher.machine.nvml import Question, ask_in_child, devices_in

TWO = [("00000000:17:00.0", "GPU-a"), ("00000000:99:00.0", "GPU-b")]

FAKE_NVML = """
class NVMLError(Exception): pass
class PciInfo:
    def __init__(self, busId): self.busId = busId
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 3
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: raise NVMLError("Insufficient Permissions")
    return index
def nvmlDeviceGetPciInfo(handle): return PciInfo(["0000:17:00.0", "", b"0000:99:00.0"][handle])
def nvmlDeviceGetUUID(handle): return ["GPU-0", "", b"GPU-2"][handle]
"""


def asked(question: Question | None = None, timeout: float = 10.0) -> tuple[tuple[str, str], ...]:
    """Return the GPUs that a child answers with."""
    return devices_in(ask_in_child(question, timeout))


@pytest.fixture(autouse=True)
def no_child_left() -> Iterator[None]:
    """Every test ends without a child, dead or alive."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def test_the_answer_comes_in_order() -> None:
    """Address and UUID of each GPU."""
    assert asked(lambda: TWO) == tuple(TWO)


def test_nvml_s_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that it lets us not use is left out; old versions answer in bytes."""
    (tmp_path / "pynvml.py").write_text(FAKE_NVML)
    monkeypatch.syspath_prepend(tmp_path)

    assert asked() == (("0000:17:00.0", "GPU-0"), ("0000:99:00.0", "GPU-2"))


def test_no_gpu_is_an_answer() -> None:
    """A driver may be there for none of ours."""
    assert asked(lambda: ()) == ()


def test_a_child_that_hangs_is_killed() -> None:
    """The library hangs on a sick GPU."""
    began = time.monotonic()

    found = asked(_hang, timeout=0.2)

    assert found == ()
    assert time.monotonic() - began < 2


def _hang() -> Iterable[tuple[str, str]]:
    yield TWO[0]
    select.select([], [], [])


def test_a_child_that_raises_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    """A missing or broken library is no news to the user: the next source is asked."""
    found = asked(_raise)

    assert found == ()
    assert capfd.readouterr() == ("", "")


def _raise() -> Iterable[tuple[str, str]]:
    yield TWO[0]
    raise ImportError


def test_a_child_that_crashes_is_no_answer() -> None:
    """A library of another version than the driver may do that."""
    assert asked(_crash) == ()


def _crash() -> Iterable[tuple[str, str]]:
    yield TWO[0]
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_library_that_ends_the_process_ends_only_the_child() -> None:
    """Not even sys.exit comes back as ours."""
    assert asked(lambda: sys.exit(3)) == ()


def test_a_signal_to_both_is_handled_once(tmp_path: Path) -> None:
    """Ctrl-C goes to the child too, which has our handlers and must not run them."""
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


def _signal_itself() -> Iterable[tuple[str, str]]:
    os.kill(os.getpid(), signal.SIGUSR1)
    return TWO


def test_the_child_holds_none_of_our_connections() -> None:
    """The fork server ends when our end closes, whatever NVML does meanwhile."""
    reading, writing = os.pipe()

    found = asked(lambda: [(str(_is_open(writing)), "")])
    os.close(reading)
    os.close(writing)

    assert found == (("False", ""),)


def _is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


def test_our_own_signal_mask_is_back_afterwards() -> None:
    """It is shut only while the child is made."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    asked(lambda: TWO)

    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_a_child_without_us_does_not_hang_for_ever() -> None:
    """Were we killed meanwhile, its own alarm ends it."""
    told, telling = os.pipe()
    middle = os.fork()
    if middle == 0:
        try:
            os.dup2(telling, 1)
            asked(_tell_and_hang, timeout=0.5)
        finally:
            os._exit(0)
    os.close(telling)
    hanging = os.read(told, 20)
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)

    # The child's standard output is the other end: it closes when the child has gone.
    ready, _, _ = select.select([told], [], [], 10)
    left = os.read(told, 1) if ready else None
    os.close(told)

    assert hanging == b"hanging"
    assert left == b""


def _tell_and_hang() -> Iterable[tuple[str, str]]:
    os.write(1, b"hanging")
    select.select([], [], [])
    return TWO
