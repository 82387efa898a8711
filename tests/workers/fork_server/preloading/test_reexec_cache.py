"""The cache of scripts that change what torch's import reads."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from clusterrun.workers.fork_server.preloading import reexec_cache

WHY = "train.py: OMP_NUM_THREADS was set before torch is imported"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's cache folder; a torch is installed."""
    caches = tmp_path / "caches"
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    (tmp_path / "site-packages/torch").mkdir(parents=True)
    (tmp_path / "site-packages/torch/__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages"), *sys.path])
    return caches


@pytest.fixture
def script(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text("import torch")
    return script


def of(script: Path | str) -> reexec_cache.ReexecCache:
    """Return the cache entry of a script, as for a later job or another rank."""
    return reexec_cache.ReexecCache(os.fsdecode(script))


def files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def test_empty_cache(script: Path, caches: Path) -> None:
    assert of(script).why() is None
    assert not caches.exists()


def test_store(script: Path, caches: Path) -> None:
    """In one file."""
    assert of(script).store(WHY)

    assert of(script).why() == WHY
    assert [file.parent for file in files(caches)] == [caches / reexec_cache.FOLDER]


def test_second_rank_stores_nothing(script: Path, caches: Path) -> None:
    """So only one of them prints a message."""
    first, second = of(script), of(script)

    assert first.store(WHY)
    assert not second.store("another")

    assert second.why() == WHY
    assert len(files(caches)) == 1


def test_concurrent_ranks_store_one_entry(script: Path, caches: Path) -> None:
    """At first, and after each change of the script, whose stale entry all of them find."""
    fork = multiprocessing.get_context("fork")
    turn, stored, rounds = fork.Barrier(8), fork.Queue(), 40

    def store_in_each_round(rank: int) -> None:
        for round_ in range(rounds):
            turn.wait(60)
            if not rank:
                script.write_text("import torch" + "#" * round_)
            turn.wait(60)
            stored.put((round_, of(script).store(WHY)))

    ranks = [
        fork.Process(target=store_in_each_round, args=(rank,), daemon=True) for rank in range(8)
    ]
    for rank in ranks:
        rank.start()
    results = sorted(stored.get(timeout=60) for _ in range(len(ranks) * rounds))
    for rank in ranks:
        rank.join(60)

    assert results == [
        (round_, first) for round_ in range(rounds) for first in [False] * 7 + [True]
    ]
    assert (of(script).why(), len(files(caches))) == (WHY, 1)


def test_paths_are_resolved(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of links and relative paths."""
    (tmp_path / "link.py").symlink_to(script)
    of(script).store(WHY)
    monkeypatch.chdir(tmp_path)

    assert of(tmp_path / "link.py").why() == WHY
    assert of("train.py").why() == WHY


@pytest.mark.parametrize(
    ("changed", "text", "later"),
    [
        pytest.param("train.py", "import os   ", 1, id="script"),
        pytest.param("train.py", "import torch, os", 0, id="size of the script"),
        pytest.param("site-packages/torch/__init__.py", "import os", 1, id="torch"),
    ],
)
def test_changed_file_invalidates_entry(
    script: Path, tmp_path: Path, caches: Path, *, changed: str, text: str, later: int
) -> None:
    """Of the same size, or of the same time."""
    of(script).store(WHY)
    before = (tmp_path / changed).stat()
    (tmp_path / changed).write_text(text)
    os.utime(tmp_path / changed, ns=(before.st_atime_ns, before.st_mtime_ns + later))

    assert of(script).why() is None
    assert of(script).store("another")
    assert not of(script).store("a third")
    assert (of(script).why(), len(files(caches))) == ("another", 1)


@pytest.mark.parametrize("below", [[], ["d" * 100] * 3], ids=["same name", "same end of 300 bytes"])
def test_similar_paths_have_distinct_entries(
    tmp_path: Path, caches: Path, below: list[str]
) -> None:
    """Of very long paths, two may share a file."""
    one, other = (tmp_path.joinpath(name, *below, "train.py") for name in ("one", "other"))
    for script in (one, other):
        script.parent.mkdir(parents=True)
        script.write_text("import torch")
    of(one).store(WHY)

    assert (of(one).why(), of(other).why()) == (WHY, None)
    assert of(other).store("another")
    assert of(other).why() == "another"
    assert below or of(one).why() == WHY
    assert all(len(os.fsencode(file.name)) <= 255 for file in files(caches))


@pytest.mark.parametrize("name", [b"tr\xffain.py", "tr\u00e4in.py".encode(), b"\xe2\x82" * 60])
def test_path_of_any_bytes(tmp_path: Path, name: bytes) -> None:
    """Including one that is cut within a character; the reason may contain a variable's name."""
    path, why = tmp_path / os.fsdecode(name), "A\udcff was set"
    path.write_text("import torch")

    assert of(path).store(why)
    assert of(path).why() == why


def test_default_cache_folder(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    of(script).store(WHY)

    assert of(script).why() == WHY
    assert files(tmp_path / "home/.cache")


@pytest.mark.parametrize("empty", [False, True])
def test_no_cache_folder(script: Path, monkeypatch: pytest.MonkeyPatch, *, empty: bool) -> None:
    """Nothing is stored, and each rank prints its message."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name)
        if empty:
            monkeypatch.setenv(name, "")
    monkeypatch.chdir(script.parent)
    before = files(script.parent)

    assert of(script).store(WHY)
    assert of(script).store(WHY)
    assert of(script).why() is None
    assert files(script.parent) == before


@pytest.mark.parametrize("place", ["folder", "file"])
def test_entry_cannot_be_written(script: Path, caches: Path, place: str) -> None:
    """A file has the name of its folder, or a folder its own."""
    if place == "folder":
        caches.write_text("a file")
    else:
        of(script).store(WHY)
        file = files(caches)[0]
        file.unlink()
        file.mkdir()

    assert of(script).why() is None
    assert of(script).store(WHY)
    assert of(script).why() is None


def test_corrupt_entry_is_replaced(script: Path, caches: Path) -> None:
    of(script).store(WHY)
    files(caches)[0].write_bytes(b"\xff\xfe")

    assert of(script).why() is None
    assert of(script).store("another")
    assert of(script).why() == "another"


def test_unknown_script() -> None:
    nothing = of("")

    assert nothing.store(WHY)
    assert nothing.why() is None


def test_torch_not_installed(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])

    of(script).store(WHY)

    assert of(script).why() == WHY
