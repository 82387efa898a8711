"""The folder for error files: closed to others, removed at the end, never waited for."""

import stat
import threading
import time
from pathlib import Path

import pytest
from clusterrun.processes import TimeLimitedCalls
from clusterrun.scratch import Scratch, remove_scratch

from tests.as_another_user import run_as_another_user
from tests.imports import imports


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_that_is_closed_to_others(tmp_path: Path) -> None:
    """It has the folders that workers need, and is made only when it is asked for."""
    scratch = Scratch(tmp_path / "scratch")
    assert not scratch.path.exists()

    assert scratch.make()
    assert scratch.add([scratch.path / "attempt-0" / "rank-0"])

    assert mode_of(scratch.path) == 0o700
    assert (scratch.path / "attempt-0" / "rank-0").is_dir()
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_after_a_cleaner_it_is_as_closed_as_before(tmp_path: Path) -> None:
    """A cleaner may remove temporary files that are days old while a job runs."""
    scratch = Scratch(tmp_path / "scratch")
    scratch.make()
    remove_scratch(scratch.path)

    assert scratch.make()
    assert scratch.add([scratch.path / "attempt-1" / "rank-0"])

    assert mode_of(scratch.path) == 0o700


@pytest.mark.parametrize("place", ["gone/scratch", "file/scratch", "link", "folder"])
def test_no_folder_to_be_had(tmp_path: Path, place: str) -> None:
    """There is no place to write, or another user's folder has that name."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "folder").mkdir()

    scratch = Scratch(tmp_path / place)

    assert not scratch.make()
    assert scratch.fault.startswith(str(tmp_path / place.partition("/")[0]))


@pytest.mark.parametrize("made_before", [False, True])
def test_a_name_that_another_has_taken_is_left_to_him(tmp_path: Path, *, made_before: bool) -> None:
    """Once the folder was seen, a cleaner may remove it, and another user make one of its name."""
    scratch = Scratch(tmp_path / "seen", tmp_path / "unseen")
    if made_before:
        assert scratch.make()
        scratch.path.rmdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "seen").symlink_to(tmp_path / "theirs")

    assert not scratch.add([tmp_path / "seen" / "attempt-1"])
    assert scratch.make()
    assert scratch.add([scratch.path / "attempt-1"])

    assert (tmp_path / "unseen" / "attempt-1").is_dir()
    assert list((tmp_path / "theirs").iterdir()) == []
    (tmp_path / "unseen").rename(tmp_path / "gone")
    (tmp_path / "unseen").symlink_to(tmp_path / "theirs")
    assert not scratch.make()
    assert scratch.fault == f"{tmp_path}/unseen was made by another user"


def test_it_is_removed_with_all_in_it(tmp_path: Path) -> None:
    """Targets of links stay; the folder itself may be a link by now."""
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    folder = tmp_path / "scratch"
    (folder / "attempt-0" / "0").mkdir(parents=True)
    (folder / "attempt-0" / "0" / "error.json").write_text("{}")
    (folder / "link").symlink_to(outside)
    (folder / "broken").symlink_to(tmp_path / "absent")
    link = tmp_path / "link"
    link.symlink_to(outside)

    remove_scratch(folder)
    remove_scratch(link)

    assert not folder.exists()
    assert (outside / "kept").is_dir()


def test_a_folder_that_is_gone_already(tmp_path: Path) -> None:
    remove_scratch(tmp_path / "absent")

    assert list(tmp_path.iterdir()) == []


def test_what_hangs_is_waited_for_once() -> None:
    """A file server that does not answer delays a job once, and is not asked again."""
    released = threading.Event()
    time_limited = TimeLimitedCalls(0.1)
    began = time.monotonic()

    assert time_limited.run(lambda: "first") == "first"
    assert time_limited.run(lambda: released.wait(60)) is None
    assert time_limited.run(lambda: "later") is None
    released.set()

    assert time.monotonic() - began < 10


@pytest.mark.needs("root", "setpriv", "prlimit")
def test_where_there_may_be_no_thread_nothing_is_done() -> None:
    """A limit of processes counts threads, too; a job that reaches it continues."""
    code = imports(TimeLimitedCalls) + "print(TimeLimitedCalls(1).run(lambda: 1))"

    done = run_as_another_user(code, processes=1)

    assert (done.stdout, done.stderr) == ("None\n", "")
