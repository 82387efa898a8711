"""The commands of the README are right; tests/test_docs.py has its transcripts."""

import re
from pathlib import Path

import pytest

from tests.transcripts import commands, run

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "README.md"
README = PAGE.read_text()


def test_links_lead_somewhere() -> None:
    """Files that the README names are there."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)

    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.parametrize("command", commands(PAGE))
def test_commands_are_right_for_eight_gpus(eight_gpus: Path, command: str, tmp_path: Path) -> None:
    """Each command is planned without an error or a warning."""
    machine = ["--machine-root", str(eight_gpus)]
    # This host is none of those that the README lists; with ssh, the first of them is planned.
    place = ["--node-rank", "0"] if "--hosts" in command and "ssh" not in command else []
    if command == "clusterrun topo":
        done = run(" ".join([command, *machine]), folder=tmp_path)
    else:
        done = run(command, "--dry-run", *machine, *place, folder=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "GPU" in done.stdout
