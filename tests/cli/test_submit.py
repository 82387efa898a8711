"""``clusterrun submit --save``: the file that it writes."""

import os
from pathlib import Path

import pytest

from tests.cli.door import (
    run_command_line,
)

SLURM = ("submit", "--to", "slurm", "--gpus-per-node", "1")
PODS = ("submit", "--to", "kubernetes", "--image", "x", "--gpus-per-node", "1")


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (SLURM, 0o644),
        ((*SLURM, "--env", "KEY=hush"), 0o600),
        # Its Secret has the token of the job.
        (PODS, 0o600),
    ],
)
def test_a_file_with_a_secret_is_the_users_alone(
    words: tuple[str, ...], mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first byte on; what was there is replaced."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("job").write_text("old")
    Path("job").chmod(0o666)
    before = os.umask(0o022)
    try:
        assert run_command_line([*words, "--save", "job", "train.py"], {}) == 0
    finally:
        os.umask(before)

    assert Path("job").stat().st_mode & 0o777 == mode
    assert "train.py" in Path("job").read_text()
    assert sorted(each.name for each in Path().iterdir()) == ["job", "train.py"]


def test_bytes_that_are_no_text_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of a file may be any bytes, and what is written is UTF-8."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    for words in (SLURM, PODS):
        assert run_command_line([*words, "--print", "train.py", "a\udcff"], {}) == 2
        assert "cannot have what is no UTF-8 text: 'a\\udcff'\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "type_too"),
    [
        ((), "--signal USR1@300 --suspend-signal USR1, or --suspend-before 300, too"),
        (("--signal", "USR2@60"), "--suspend-signal USR2, or --suspend-before 300, too"),
        (("--signal", "USR2@60", "--suspend-signal", "USR2"), ""),
        (("--signal", "TERM@60"), ""),
        (("--suspend-before", "300"), ""),
        (("--suspend-hook", "true"), ""),
    ],
)
def test_a_requeue_that_nothing_asks_for_is_named(
    options: tuple[str, ...],
    type_too: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A job that reaches its time limit is not suspended, and is not put back."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    code = run_command_line([*SLURM, "--requeue", *options, "--print", "train.py"], {})

    nothing = "clusterrun: warning: --requeue: nothing suspends the job before its time limit"
    assert code == 0
    assert capsys.readouterr().err == (
        f"{nothing}, which ends it for good: type {type_too}\n" if type_too else ""
    )
