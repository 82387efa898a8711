"""The pictures of commands in the documentation, as their script writes them."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[1]

SHOWN = {
    "ps": ["digits", "train.py"],
    "status": ["stopped", "rank 2 is behind"],
    "doctor": ["open files"],
    "slow": ["rank 2 is slow", "reading data", "__getitem__"],
}


@pytest.mark.long
@pytest.mark.needs("py-spy")
def test_the_script_draws_all_commands(tmp_path: Path) -> None:
    """Each is a picture with the text of its command, and the pages have all of them."""
    words = [sys.executable, str(ROOT / "scripts/write_screens.py"), str(tmp_path)]
    subprocess.run(words, check=True, timeout=120)

    for name, texts in SHOWN.items():
        picture = ET.parse(tmp_path / f"{name}.svg")  # noqa: S314 - our own
        shown = " ".join(picture.getroot().itertext()).replace("\xa0", " ")
        assert all(text in shown for text in texts), shown
        assert (ROOT / f"docs/images/{name}.svg").exists()
