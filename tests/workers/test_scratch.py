"""The folder for error files: our own, and gone with us."""

import os
import stat
from pathlib import Path

from launcher.workers.scratch import make_scratch, remove_scratch


def test_a_folder_of_our_own(tmp_path: Path) -> None:
    """Below TMPDIR, named after the run and this process, closed to others."""
    folder = make_scratch({"TMPDIR": str(tmp_path)}, "run-7")

    assert folder == tmp_path / f"clusterrun-run-7-{os.getpid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_usual_folder() -> None:
    """Without TMPDIR, or with an empty one, /tmp."""
    folders = [make_scratch(environ, "of-a-test") for environ in ({}, {"TMPDIR": ""})]

    assert folders == [Path(f"/tmp/clusterrun-of-a-test-{os.getpid()}"), None]
    remove_scratch(Path(f"/tmp/clusterrun-of-a-test-{os.getpid()}"))


def test_no_folder_to_be_had(tmp_path: Path) -> None:
    """Neither where there is nothing to write to, nor where somebody was first."""
    taken = tmp_path / f"clusterrun-run-7-{os.getpid()}"
    taken.symlink_to(tmp_path)

    assert make_scratch({"TMPDIR": str(tmp_path / "absent")}, "run-7") is None
    assert make_scratch({"TMPDIR": str(tmp_path)}, "run-7") is None
    assert make_scratch({"TMPDIR": str(tmp_path)}, "run/7") is None


def test_it_is_removed_with_all_in_it(tmp_path: Path) -> None:
    """But for what its links lead to."""
    outside = tmp_path / "outside"
    (outside / "kept").mkdir(parents=True)
    folder = tmp_path / "scratch"
    (folder / "attempt-0" / "0").mkdir(parents=True)
    (folder / "attempt-0" / "0" / "error.json").write_text("{}")
    (folder / "link").symlink_to(outside)
    (folder / "broken").symlink_to(tmp_path / "absent")

    remove_scratch(folder)

    assert not folder.exists()
    assert (outside / "kept").is_dir()


def test_a_folder_that_is_gone_already(tmp_path: Path) -> None:
    """There is nothing to do."""
    remove_scratch(tmp_path / "absent")

    assert list(tmp_path.iterdir()) == []
