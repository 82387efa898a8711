"""The functions that a script calls, with a page that the test writes in place of an agent."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from mmap import mmap
from pathlib import Path
from types import ModuleType

import clusterrun.suspend
import numpy as np
import pytest

from tests.imports import output_of

PAGE = 8192


class Page:
    """The agent's side of the page of one rank, whose number is 1."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "suspend"
        self.path.write_bytes(bytes(PAGE))
        fifo = f"{self.path}{clusterrun.suspend.FIFO_SUFFIX}"
        os.mkfifo(fifo)
        self.calls = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
        with self.path.open("r+b") as file:
            self.words = memoryview(mmap(file.fileno(), 0)).cast("Q")
        self.variable = f"{self.path}:1"

    def hold(self, word: int) -> None:
        self.words[clusterrun.suspend.REQUEST_WORD] = word

    @property
    def rank(self) -> tuple[int, int]:
        """The two words of the rank's only process."""
        return self.caller(0)

    def caller(self, number: int) -> tuple[int, int]:
        """Return the two words of one of its processes."""
        slot = 1 + clusterrun.suspend.MAX_CALLERS_PER_RANK + number
        own = slot * clusterrun.suspend.WORDS_PER_SLOT
        return self.words[own], self.words[own + clusterrun.suspend.SAVED_WORD]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """Return a page of an agent."""
    page = Page(tmp_path)
    yield page
    os.close(page.calls)


@pytest.fixture
def suspend(page: Page, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module as a rank with that page has it, before its first call."""
    monkeypatch.setenv(clusterrun.suspend.VARIABLE, page.variable)
    monkeypatch.setattr(clusterrun.suspend, "_page", None)
    monkeypatch.setattr(clusterrun.suspend, "_is_open", False)
    return clusterrun.suspend


def soon(act: Callable[[], object]) -> threading.Timer:
    """Do something a little later, in a thread."""
    timer = threading.Timer(0.1, act)
    timer.start()
    return timer


def test_requested_is_false_outside_clusterrun() -> None:
    """The module imports little, and always returns False."""
    code = (
        "import sys; from clusterrun import suspend; import clusterrun;"
        "print(suspend.requested(), suspend.requested(5), suspend.ready(), clusterrun.suspend is suspend,"
        "*{'struct', 'ctypes', 'pathlib', 'msgspec'} & set(sys.modules))"
    )

    folder = Path(clusterrun.suspend.__file__).parent.parent
    assert output_of(code, sys.executable, "-S", folder=folder) == "False False None True\n"


@pytest.mark.parametrize(
    ("word", "steps", "answers", "last"),
    [
        pytest.param(0, (None, None, None), [False] * 3, 3, id="calls are counted"),
        # A resumed run begins at its step; a call without a step counts from there.
        pytest.param(0, (1000, 1010, None), [False] * 3, 1012, id="steps of a resumed run"),
        # A script may call at every tenth step only.
        pytest.param(6, (0, 10), [False, True], 11, id="a later step than agreed"),
    ],
)
def test_steps_are_written_to_the_page(
    suspend: ModuleType,
    page: Page,
    *,
    word: int,
    steps: tuple[int | None, ...],
    answers: list[bool],
    last: int,
) -> None:
    """The first call also writes one byte to the pipe."""
    page.hold(word)

    assert [suspend.requested(step) for step in steps] == answers
    assert os.read(page.calls, 100) == b"."
    assert page.rank == (last, 0)


def test_steps_must_not_decrease(suspend: ModuleType) -> None:
    """Otherwise ranks could not agree on a step."""
    suspend.requested(7)

    with pytest.raises(
        ValueError, match=r"requested\(6\): steps must not decrease \(the previous step was 7\)"
    ):
        suspend.requested(6)


@pytest.mark.parametrize("step", [0.5, -1, np.int64(-1)])
@pytest.mark.parametrize("launched", [False, True])
def test_step_must_be_a_whole_number_from_0(
    suspend: ModuleType, monkeypatch: pytest.MonkeyPatch, step: int, *, launched: bool
) -> None:
    """A mistake is not found only once the script runs under clusterrun."""
    if not launched:
        monkeypatch.delenv(suspend.VARIABLE)

    with pytest.raises(ValueError, match=rf"requested\({step}\): the step must be a whole number"):
        suspend.requested(step)


def test_step_may_have_a_type_of_numpy(suspend: ModuleType, page: Page) -> None:
    suspend.requested(np.int64(7))

    assert page.rank == (8, 0)


def test_rank_waits_until_the_step_is_agreed(suspend: ModuleType, page: Page) -> None:
    """It waits until the step is agreed, then continues up to that step."""
    suspend.requested()
    page.hold(suspend.HOLD)
    began, timer = time.monotonic(), soon(lambda: page.hold(4))

    answers = [suspend.requested() for _ in range(3)]

    timer.join()
    assert time.monotonic() - began > 0.09
    assert answers == [False, False, True]
    assert page.rank == (4, 0)


def test_cancelled_agreement_returns_false(suspend: ModuleType, page: Page) -> None:
    """A waiting rank continues."""
    page.hold(suspend.HOLD)
    timer = soon(lambda: page.hold(0))

    assert not suspend.requested()

    timer.join()


def test_ready_outside_a_suspension_returns(suspend: ModuleType, page: Page) -> None:
    """A script may call it at any time."""
    suspend.ready()
    suspend.requested()
    suspend.ready()

    assert page.rank == (1, 0)


def test_ready_waits_for_all_ranks(suspend: ModuleType, page: Page) -> None:
    """It then raises SystemExit, so that exit handlers run."""
    page.hold(1)
    assert suspend.requested()

    def leave() -> None:
        assert page.rank == (1, 1)
        page.words[suspend.EXIT_WORD] = 1

    timer = soon(leave)
    with pytest.raises(SystemExit) as end:
        suspend.ready()

    timer.join()
    assert end.value.code == 0


def test_ready_returns_if_the_suspension_is_cancelled(suspend: ModuleType, page: Page) -> None:
    """The rank continues, and later calls return False."""
    page.hold(1)
    assert suspend.requested()
    timer = soon(lambda: page.hold(0))

    suspend.ready()

    timer.join()
    assert not suspend.requested()
    suspend.ready()


def test_unopenable_page_gives_a_warning(
    suspend: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For instance in a container without the launcher's folder. The script continues."""
    monkeypatch.setenv(suspend.VARIABLE, "/nowhere/suspend:0")

    with pytest.warns(UserWarning, match=r"can't suspend this rank: .* '/nowhere/suspend'"):
        assert not suspend.requested()
    assert not suspend.requested()


def test_a_forked_child_of_a_rank_is_not_the_rank(suspend: ModuleType, page: Page) -> None:
    """A data loader's worker changes nothing, and does not stop."""
    suspend.requested(5)
    page.hold(1)

    child = os.fork()
    if child == 0:
        os._exit(suspend.requested(99))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert page.rank == (6, 0)


def test_processes_of_a_rank_have_their_own_slots(suspend: ModuleType, page: Page) -> None:
    """A script may start a process for each GPU by itself, before any has called."""
    child = os.fork()
    if child == 0:
        suspend.requested(7)
        os._exit(0)
    os.waitpid(child, 0)

    suspend.requested(5)

    assert (page.caller(0), page.caller(1)) == ((8, 0), (6, 0))


def test_a_program_that_a_rank_executes_is_not_the_rank(suspend: ModuleType) -> None:
    """For instance an evaluation that the rank starts after its first call."""
    suspend.requested()

    assert suspend.VARIABLE not in os.environ


def test_too_many_callers_give_a_warning(suspend: ModuleType, page: Page) -> None:
    """The last process continues, with a warning."""
    for number in range(suspend.MAX_CALLERS_PER_RANK):
        Path(f"{page.path}.1.{number}").touch()

    with pytest.warns(
        UserWarning,
        match=("32 other processes of this rank have already called suspend.requested()"),
    ):
        assert not suspend.requested()
