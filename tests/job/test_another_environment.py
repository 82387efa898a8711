"""An active virtual environment other than clusterrun's own is named, with what to type."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.command_lines import Flags
from tests.described import PROCESS, describe

pytestmark = pytest.mark.usefixtures("script")


@pytest.fixture
def ours(folder: Path) -> str:
    """Return the interpreter of clusterrun's environment, in a folder with another environment."""
    for name in ("ours", "other"):
        (folder / name / "bin").mkdir(parents=True)
        (folder / name / "bin/python").touch(mode=0o755)
    (folder / "broken").mkdir()
    (folder / "link").symlink_to("ours")
    return f"{folder}/ours/bin/python"


def test_another_environment_is_active(folder: Path, ours: str) -> None:
    """Both are named: what is imported in the workers is not what the prompt promises."""
    process = replace(PROCESS, python=ours)

    described = describe("train.py", environ={"VIRTUAL_ENV": f"{folder}/other"}, process=process)

    assert described.warnings == (
        (
            f"workers run {ours}, as clusterrun does, not the active environment {folder}/other"
            f" (VIRTUAL_ENV); to use that, type --python {folder}/other/bin/python"
        ),
    )


@pytest.mark.parametrize(
    ("active", "flags", "words"),
    [
        ("", {}, "train.py"),
        ("ours", {}, "train.py"),
        ("link", {}, "train.py"),
        ("broken", {}, "train.py"),
        ("other", {"python": "ours/bin/python"}, "train.py"),
        ("other", {"no_python": True}, "true"),
    ],
)
def test_no_warning(folder: Path, ours: str, active: str, flags: Flags, words: str) -> None:
    """None is active, it is ours, it has no Python, the user chose, or no Python runs."""
    environ: Mapping[str, str] = {"VIRTUAL_ENV": f"{folder}/{active}" if active else ""}

    described = describe(words, flags=flags, environ=environ, process=replace(PROCESS, python=ours))

    assert described.warnings == ()
