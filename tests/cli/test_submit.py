"""``clusterrun submit``: what it warns of, and what it answers to options that it does not have."""

from pathlib import Path

import pytest

from tests.cli.door import (
    run_command_line,
)

SLURM = ("submit", "--to", "slurm", "--gpus-per-node", "1")
PODS = ("submit", "--to", "kubernetes", "--image", "x", "--gpus-per-node", "1")


def test_bytes_that_are_no_text_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name of a file may be any bytes, and what is written is UTF-8."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    for words in (SLURM, PODS):
        assert run_command_line([*words, "--print", "train.py", "a\udcff"], {}) == 2
        assert "can't have text that is not UTF-8: 'a\\udcff'\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "type_too"),
    [
        ((), "--suspend-before 300, too"),
        (("--directive=--signal=TERM@60",), ""),
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

    nothing = "clusterrun: --requeue: nothing suspends the job before its time limit"
    assert code == 0
    assert capsys.readouterr().err == (
        f"{nothing}, which ends it for good: type {type_too}\n" if type_too else ""
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            "--mem 4G",
            "type --memory-per-gpu SIZE, of which a node has one for each GPU, or --directive=--mem=4G",
        ),
        ("-p all", "type --partition all"),
        ("-pall", "type --partition all"),
        ("--gres gpu:4", "type --gpus-per-node 4"),
        ("--gres=gpu:h100:4", "type --gpus-per-node h100:4"),
        ("--gpus 8", "type --gpus-per-node N: 8 of sbatch's is for all nodes together"),
        ("-N 2", "type --nnodes 2"),
        ("-x n1", "type --directive='-x n1'"),
        ("--exclude=n1", "type --directive=--exclude=n1"),
        ("--nodelist n1", "type --directive=--nodelist=n1"),
        ("--array 0-15%4", "type --directive=--array=0-15%4, for PBS --directive='-J 0-15%4'"),
        ("--modules cuda/12.4,nccl", "type --setup 'module load cuda/12.4 nccl'"),
        ("--save job.sh", "type --print > job.sh"),
        ("--wait", "type --follow > /dev/null"),
        ("--node-selector pool=h100", "type --directive='nodeSelector: {pool: h100}'"),
        ("--dependency=7", "type --directive=--dependency=afterok:7;"),
        ("--signal USR1@300", "type --directive=--signal=USR1@300, or --suspend-before"),
    ],
)
def test_what_is_typed_instead(
    words: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of sbatch's own options, and of those that clusterrun 0.1 had: the whole line."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    code = run_command_line([*SLURM, *words.split(), "--print", "train.py"], {})

    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("clusterrun: error: there is no option ")
    assert f"\n  {hint}" in error


def test_a_time_by_sbatchs_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To torchrun, -t is --tee."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()

    assert run_command_line([*SLURM, "-t", "10", "--print", "train.py"], {}) == 2
    assert "for a time limit, type --time 10m or --time 2:00:00\n" in capsys.readouterr().err
