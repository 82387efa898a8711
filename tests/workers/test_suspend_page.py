"""The agent's side of the page that it shares with its ranks."""

from collections.abc import Iterator
from mmap import mmap
from pathlib import Path

import pytest
from clusterrun import suspend
from clusterrun.bounds import LocalRank
from clusterrun.policy import events
from clusterrun.workers import suspend_page

SuspendPage = suspend_page.SuspendPage
NOW = 100.0


@pytest.fixture
def page(tmp_path: Path) -> Iterator[SuspendPage]:
    """Return the page of two ranks."""
    page = SuspendPage(tmp_path / "suspend", [LocalRank(0), LocalRank(1)])
    yield page
    page.close()


@pytest.fixture
def words(page: SuspendPage, tmp_path: Path) -> "memoryview[int]":  # noqa: ARG001 - makes the file
    """Return the words as a rank sees them."""
    with (tmp_path / "suspend").open("r+b") as file:
        return memoryview(mmap(file.fileno(), 0)).cast("Q")


def write(words: "memoryview[int]", rank: int, word: int, value: int, caller: int = 0) -> None:
    """A process of a rank writes one of its words."""
    words[(1 + rank * suspend.MAX_CALLERS_PER_RANK + caller) * suspend.WORDS_PER_SLOT + word] = (
        value
    )


def test_steps_are_read_some_time_after_the_hold(
    page: SuspendPage, words: "memoryview[int]"
) -> None:
    """What a rank writes in that time counts."""
    page.hold(NOW)
    assert words[suspend.REQUEST_WORD] == suspend.HOLD
    assert list(page.events(NOW)) == []
    write(words, 0, suspend.STEP_WORD, 5)
    write(words, 1, suspend.STEP_WORD, 6)

    due = page.due
    assert due == NOW + suspend_page.HOLD_SECONDS
    *_, held = page.events(due)
    assert held == events.RanksHeld(6, due)


def test_saved_ranks_are_reported_once(page: SuspendPage, words: "memoryview[int]") -> None:
    write(words, 0, suspend.STEP_WORD, 5)
    list(page.events(NOW))
    page.release(5)
    assert words[suspend.REQUEST_WORD] == 5
    write(words, 0, suspend.SAVED_WORD, 1)

    assert list(page.events(NOW)) == [events.RankSaved(LocalRank(0), 5, NOW)]
    assert page.due == NOW + suspend_page.SECONDS_BETWEEN_CHECKS
    assert list(page.events(page.due)) == []


def test_rank_has_saved_once_all_its_processes_have(
    page: SuspendPage, words: "memoryview[int]"
) -> None:
    """Its step is their highest; some slots are unused."""
    write(words, 1, suspend.STEP_WORD, 5)
    write(words, 1, suspend.STEP_WORD, 6, caller=3)
    assert list(page.events(NOW)) == [events.RankCalledSuspend(LocalRank(1), NOW)]
    page.hold(NOW)
    assert list(page.events(page.due)) == [events.RanksHeld(6, NOW + suspend_page.HOLD_SECONDS)]
    page.release(7)
    write(words, 1, suspend.SAVED_WORD, 1)
    assert list(page.events(NOW)) == []
    write(words, 1, suspend.SAVED_WORD, 1, caller=3)

    assert list(page.events(page.due)) == [
        events.RankSaved(LocalRank(1), 6, NOW + suspend_page.SECONDS_BETWEEN_CHECKS)
    ]


@pytest.mark.parametrize(("before", "after"), [(suspend.HOLD, 0), (5, 5)])
def test_ranks_may_exit(
    before: int, after: int, page: SuspendPage, words: "memoryview[int]"
) -> None:
    """Held ranks continue; those that are to save still may."""
    page.hold(NOW)
    if before != suspend.HOLD:
        page.release(before)

    page.let_exit()

    assert (words[suspend.EXIT_WORD], words[suspend.REQUEST_WORD]) == (1, after)
    assert page.due == float("inf")


def test_cancelled_suspension_needs_no_checks(page: SuspendPage, words: "memoryview[int]") -> None:
    """Ranks continue."""
    page.hold(NOW)
    list(page.events(page.due))
    page.release(0)

    assert words[suspend.REQUEST_WORD] == 0
    assert page.due == float("inf")
