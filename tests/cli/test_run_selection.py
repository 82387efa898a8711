"""What is said of an agent of another version."""

from pathlib import Path

import pytest
from clusterrun.cli import run_selection
from clusterrun.network.control_client import SilentAgent


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (
            "/me/clusterrun-0.1/bin/python /me/clusterrun-0.1/bin/clusterrun train.py",
            "/me/clusterrun-0.1/bin/python /me/clusterrun-0.1/bin/clusterrun",
        ),
        ("/clusterrun/python -P -m clusterrun train.py", "/clusterrun/python -m clusterrun"),
        ("python -P -u -m clusterrun.clients.ssh.bootstrap", "python -m clusterrun"),
        ("python /lib/clusterrun/__main__.py train.py", "python -m clusterrun"),
        ("/x/python /x/torchrun --log-dir /me/clusterrun t.py", "/x/python -m clusterrun"),
    ],
)
def test_program_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, program: str
) -> None:
    process = tmp_path / "proc/7"
    process.mkdir(parents=True)
    (process / "cmdline").write_text(command.replace(" ", "\0"))
    monkeypatch.setattr(run_selection, "ROOT", tmp_path)

    found = run_selection.describe_silent(SilentAgent(7, "it speaks version 2"))

    assert found == f"pid 7: it speaks version 2; use the clusterrun that started it: {program}"
