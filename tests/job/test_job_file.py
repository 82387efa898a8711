"""Job files: keys set options, the program and variables; errors are in lines/job_files.txt."""

from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.job_file import read_job_file
from clusterrun.job.sources import JobFile, value_of


def read(text: str) -> JobFile:
    """Return what a file job.yaml with this text sets."""
    Path("job.yaml").write_text(text)
    return read_job_file(Setting("job.yaml", "--config"))


def test_keys_set_options() -> None:
    """A key is the name or an alias of an option; the origin has file, line and key."""
    settings = read("nproc_per_node: auto\nrdzv_id: 007\nno_python: yes\n").settings

    assert settings == {
        "nproc_per_node": (Setting("auto", "job.yaml:1 nproc_per_node"),),
        "run_id": (Setting("007", "job.yaml:2 rdzv_id"),),
        "no_python": (Setting("yes", "job.yaml:3 no_python"),),
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [("rdzv_id: theirs\nrun_id: ours\n", 1), ("run_id: ours\nrdzv_id: theirs\n", 2)],
)
def test_alias_wins_over_name(text: str, line: int) -> None:
    """The order in the file does not matter."""
    settings = read(text).settings

    assert value_of("run_id", [settings]) == Setting("theirs", f"job.yaml:{line} rdzv_id")


def test_script_and_args() -> None:
    """The words are the same as on a command line, each as text."""
    words = read("args: [--lr, 1e-3, 010, no, '']\nscript: train.py\n").words

    assert words == Setting(("train.py", "--lr", "1e-3", "010", "no", ""), "job.yaml:2 script")


def test_module_sets_the_option_module() -> None:
    """The key has the name of the module, so the option -m is also set."""
    job_file = read("module: pkg.train\nargs:\n  - --fast\n")

    assert job_file.words == Setting(("pkg.train", "--fast"), "job.yaml:1 module")
    assert job_file.settings == {
        "module": (Setting("true", "job.yaml:1 module"),),
        "args": (Setting("--fast", "job.yaml:2 args"),),
    }


def test_env() -> None:
    """The origin of each variable has its line; an empty value sets an empty variable."""
    settings = read("env:\n  A: no\n  B:\n  C: x=y\n").settings

    assert settings == {
        "env": (
            Setting("A=no", "job.yaml:2 env.A"),
            Setting("B=", "job.yaml:3 env.B"),
            Setting("C=x=y", "job.yaml:4 env.C"),
        )
    }


def test_keys_without_a_value_are_unset() -> None:
    job_file = read("script:\nmodule:\nargs:\nenv:\nnnodes:\nrun_id: ''\n")

    assert job_file == JobFile({}, Setting((), "default"))
