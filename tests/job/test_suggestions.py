"""Suggestions for a mistyped word and a missing file."""

import os
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest
from clusterrun.job.mistakes import command
from clusterrun.job.suggestions import closest, did_you_mean_file

FLAGS = ("nnodes", "nproc_per_node", "numa_binding")


class Entry(NamedTuple):
    """A file as ``os.scandir`` lists it."""

    name: str

    def is_file(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("nnode", "nnodes"),
        ("nproc", "nproc_per_node"),
        ("numa_bindign", "numa_binding"),
        ("NNODES", "nnodes"),
        ("lr", ""),
        ("n", ""),
        ("", ""),
    ],
)
def test_closest(word: str, nearest: str) -> None:
    """Abbreviations and misspellings find a word."""
    assert closest(word, FLAGS) == nearest


@pytest.mark.parametrize(
    ("path", "suggestion"),
    [
        ("trian.py", "did you mean train.py?"),
        ("./trian.py", "did you mean ./train.py?"),
        ("jobs/mian.py", "did you mean jobs/main.py?"),
        ("jobs", ""),
        ("jobs/", ""),
        ("zzz", ""),
        ("zzz/nothing.py", ""),
        ("", ""),
        # The folder is this one, or another.
        ("nowhere/train.py", "did you mean train.py?"),
        ("/home/me/project/jobs/main.py", "did you mean jobs/main.py?"),
        ("main.py", "did you mean jobs/main.py?"),
        ("scripts/main.py", "did you mean jobs/main.py?"),
        ("job/mian.py", "did you mean jobs/main.py?"),
        ("./jbos/deep/evaluate.p", "did you mean ./jobs/deep/evaluate.py?"),
        ("jobs/deepx/evaluate.py", "did you mean jobs/deep/evaluate.py?"),
    ],
)
def test_suggested_file(folder: Path, path: str, suggestion: str) -> None:
    """The same name elsewhere, or a similar one, written like the typed path; never a folder."""
    (folder / "train.py").touch()
    (folder / "jobs/deep").mkdir(parents=True)
    (folder / "jobs/main.py").touch()
    (folder / "jobs/deep/evaluate.py").touch()

    assert did_you_mean_file(path) == suggestion


def test_file_with_other_case_is_nearest(folder: Path) -> None:
    for name in ("ok.py", "OD.py", "OK.pyi", "OKs.py"):
        (folder / name).touch()

    assert did_you_mean_file("OK.py") == "did you mean ok.py?"


@pytest.mark.parametrize(("before", "suggestion"), [(1999, "did you mean train.py?"), (2000, "")])
def test_only_first_2000_entries_of_a_folder_are_read(
    before: int, suggestion: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More could take long on a shared file system."""
    entries = [*(Entry(f"{number}.bin") for number in range(before)), Entry("train.py")]
    monkeypatch.setattr(os, "scandir", lambda _folder: nullcontext(iter(entries)))

    assert did_you_mean_file("trian.py") == suggestion


def test_missing_file_in_the_root_folder() -> None:
    """The path is searched there, not in the current folder."""
    assert not did_you_mean_file("/no-such-file-anywhere")


def test_command_is_quoted() -> None:
    assert command("train.py", "a b") == "clusterrun [OPTIONS] train.py 'a b'"
