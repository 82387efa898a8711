"""Kinds of files, including files that this user may not see."""

import os
from pathlib import Path

import pytest
from clusterrun.job.file_kinds import FileKind, is_executable, kind_of, names_in

NOBODY = 65534


def test_kind_of_each_file(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "link").symlink_to("file")
    (folder / "dangling").symlink_to("gone")
    os.mkfifo(folder / "pipe")

    assert kind_of("file") is FileKind.FILE
    assert kind_of("link") is FileKind.FILE
    assert kind_of(".") is FileKind.FOLDER
    assert kind_of("pipe") is FileKind.OTHER
    assert kind_of("dangling") is FileKind.NOTHING


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "file/below", "\udcff"])
def test_impossible_paths_are_nothing(folder: Path, path: str) -> None:
    (folder / "file").touch()

    assert kind_of(path) is FileKind.NOTHING


def test_file_in_a_closed_folder_is_nothing(folder: Path) -> None:
    """A folder without search permission raises no error; a child process drops root rights first."""
    folder.chmod(0o755)
    closed = folder / "closed"
    closed.mkdir()
    (closed / "train.py").touch()
    closed.chmod(0)
    child = os.fork()
    if not child:
        os._exit(kind_for_nobody("closed/train.py") is not FileKind.NOTHING)

    _, status = os.waitpid(child, 0)

    closed.chmod(0o755)
    assert status == 0


def kind_for_nobody(path: str) -> FileKind | None:
    """Return the kind for a user without rights, which this process becomes; None if it raises."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    try:
        return kind_of(path)
    except OSError:
        return None


def test_only_executable_files_are_executable(folder: Path) -> None:
    """A folder also has execute permission, but is not executable."""
    (folder / "plain").touch()
    (folder / "program").touch(mode=0o755)

    assert is_executable("program")
    assert not is_executable("plain")
    assert not is_executable(".")


def test_names_in_a_folder_are_limited(folder: Path) -> None:
    """Folders are not included, and only the first entries are read."""
    (folder / "sub").mkdir()
    for number in range(5):
        (folder / f"file{number}").touch()

    assert sorted(names_in(".", 100)) == [f"file{number}" for number in range(5)]
    assert len(names_in(".", 3)) <= 3
    assert names_in("nowhere", 100) == []
