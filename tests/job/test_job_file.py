"""Job files: keys become options, words and variables; every mistake has file, line and key."""

from pathlib import Path

import pytest
from clusterrun.errors import ExitCode, UsageError
from clusterrun.job.declarations import Setting
from clusterrun.job.job_file import read_job_file
from clusterrun.job.sources import JobFile, value_of

KEYS_ARE_OPTIONS = "each option is a key: type clusterrun --help all"


def read(text: str) -> JobFile:
    """Return what a file called job.yaml says."""
    Path("job.yaml").write_text(text)
    return read_job_file(Setting("job.yaml", "--config"))


def test_keys_are_options() -> None:
    """A key says the option of its name, or of its alias, with file, line and key as origin."""
    said = read("nproc_per_node: auto\nrdzv_id: 007\nno_python: yes\n").settings

    assert said == {
        "nproc_per_node": (Setting("auto", "job.yaml:1 nproc_per_node"),),
        "run_id": (Setting("007", "job.yaml:2 rdzv_id"),),
        "no_python": (Setting("yes", "job.yaml:3 no_python"),),
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [("rdzv_id: theirs\nrun_id: ours\n", 1), ("run_id: ours\nrdzv_id: theirs\n", 2)],
)
def test_of_two_keys_for_one_option_the_alias_wins(text: str, line: int) -> None:
    """As among variables, and wherever it stands."""
    settings = read(text).settings

    assert value_of("run_id", [settings]) == Setting("theirs", f"job.yaml:{line} rdzv_id")


def test_script_and_args_are_words() -> None:
    """A script and its arguments read as on a command line, each text as it looks."""
    words = read("args: [--lr, 1e-3, 010, no, '']\nscript: train.py\n").words

    assert words == Setting(("train.py", "--lr", "1e-3", "010", "no", ""), "job.yaml:2 script")


def test_a_module_is_words_and_says_so() -> None:
    """The key holds the name, so it stands for the flag as well."""
    job_file = read("module: pkg.train\nargs:\n  - --fast\n")

    assert job_file.words == Setting(("pkg.train", "--fast"), "job.yaml:1 module")
    assert job_file.settings == {"module": (Setting("true", "job.yaml:1 module"),)}


def test_env_is_a_mapping_of_texts() -> None:
    """Each variable has its own line as origin; an empty value sets an empty variable."""
    said = read("env:\n  A: no\n  B:\n  C: x=y\n").settings

    assert said == {
        "env": (
            Setting("A=no", "job.yaml:2 env.A"),
            Setting("B=", "job.yaml:3 env.B"),
            Setting("C=x=y", "job.yaml:4 env.C"),
        )
    }


def test_keys_without_a_value_say_nothing() -> None:
    """A skeleton of empty keys is an empty file."""
    job_file = read("script:\nmodule:\nargs:\nenv:\nnnodes:\nrun_id: ''\n")

    assert job_file == JobFile({}, Setting((), "default"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "\nnproc-per-node: 1\n",
            "job.yaml:2 nproc-per-node: there is no such key",
            "did you mean nproc_per_node?",
        ),
        (
            "compute_environment: LOCAL_MACHINE\nnum_processes: 8\n",
            "job.yaml:1 compute_environment: there is no such key; accelerate's own files have it",
            f"type its values as options, or write a job file; {KEYS_ARE_OPTIONS}",
        ),
        ("<<: {}\n", "job.yaml:1 <<: there is no such key", KEYS_ARE_OPTIONS),
        (
            "script: a.py\nargs: [[1]]\n",
            "job.yaml:2 args: a list, where a single value is expected",
            "put quotes around it if it is meant as text",
        ),
        (
            "env:\n  A=B: 1\n",
            "job.yaml:2 env.A=B: 'A=B' is not the name of a variable",
            "write NAME: VALUE",
        ),
    ],
)
def test_mistakes(text: str, message: str, hint: str) -> None:
    """What a job file must not have."""
    with pytest.raises(UsageError) as caught:
        read(text)

    assert caught.value.exit_code == ExitCode.USAGE
    assert (caught.value.message, caught.value.hint) == (message, hint)
