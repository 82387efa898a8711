"""What is offered where: flags, words, files, and nothing of ours behind the script."""

import os
from pathlib import Path

import pytest
from clusterrun.cli.completion import SHELLS, completion_script, completions
from clusterrun.errors import UsageError


def offered(line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the completions at the end of ``line``, which click reads from two variables."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    return completions("bash_complete", "clusterrun", dict(os.environ)).splitlines()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("clusterrun --numa-b", ["plain,--numa-binding"]),
        ("clusterrun --max_r", ["plain,--max-restarts"]),
        ("clusterrun --dry-run --js", ["plain,--json"]),
        ("clusterrun --start-method s", ["plain,spawn"]),
        ("clusterrun --start_method s", ["plain,spawn"]),
        ("clusterrun --start-method = s", ["plain,spawn"]),
        ("clusterrun --start-method=s", ["plain,spawn"]),
        ("clusterrun --numa-binding co", ["plain,core-complex"]),
        ("clusterrun --nproc g", ["plain,gpu"]),
        ("clusterrun --nproc N", []),
        ("clusterrun --cluster slu", ["plain,slurm"]),
        ("clusterrun --cluster no", ["plain,none"]),
        ("clusterrun --help rend", ["plain,rendezvous"]),
        ("clusterrun --print-completion z", ["plain,zsh"]),
        ("clusterrun --config jo", ["file,jo"]),
        ("clusterrun --log-dir lo", ["dir,lo"]),
        ("clusterrun --pass-local-rank tr", ["file,tr"]),
        ("clusterrun --nnodes 2 tr", ["file,tr"]),
        ("clusterrun to", ["plain,topo", "file,to"]),
        ("clusterrun topo --cap", ["plain,--capture"]),
        ("clusterrun topo --capture ma", ["file,ma"]),
        ("clusterrun topo --machine-root ma", ["file,ma"]),
        ("clusterrun submit --par", ["plain,--partition"]),
        ("clusterrun doc", ["plain,doctor"]),
        ("clusterrun lor", ["file,lor"]),
        ("clusterrun --no-python to", ["file,to"]),
        ("clusterrun stop mine --n", ["plain,--now"]),
        ("clusterrun --typo 1 --start-method s", ["plain,spawn"]),
        ("clusterrun --env PATH=lo", []),
        ("clusterrun name=1", ["file,name=1"]),
        ("clusterrun -m pk", ["plain,pkg"]),
        ("clusterrun -m pkg.", ["plain,pkg.train"]),
        ("clusterrun -m pkg.train pk", ["file,pk"]),
        ("clusterrun train.py --n", ["file,--n"]),
        ("clusterrun train.py --lr ", ["file,"]),
    ],
)
def test_completions(
    line: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags in full, the words of a choice, files and folders; after -m modules.

    A folder of a command's name does not hide the command.
    """
    for name in ("logs/1", "topology.py", "pkg/train.py", "pkg/README", "notes/README"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)

    assert offered(line, monkeypatch) == found


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(shell: str) -> None:
    """For the name by which we were called."""
    script = completion_script(shell, "torchrun")

    assert f"_TORCHRUN_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize("instruction", ["1", "bash_source", "tcsh_complete"])
def test_a_variable_that_no_script_sets(instruction: str) -> None:
    """Says itself what is wrong."""
    with pytest.raises(UsageError) as caught:
        completions(instruction, "clusterrun", {})

    assert caught.value.hint == "unset _CLUSTERRUN_COMPLETE"
