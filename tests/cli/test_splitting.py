"""The command line is split into options and the words from SCRIPT on.

Flags may be spelled with - or _, and abbreviated as far as argparse allows it.
"""

import subprocess
import sys

import pytest
from clusterrun.cli.commands import find_command, load_object
from clusterrun.cli.main import run_command_line
from clusterrun.cli.splitting import (
    FLAGS,
    TORCHRUN_FLAGS,
    expand_flag,
    is_flag,
    matching_flags,
    split,
)
from clusterrun.errors import UsageError
from clusterrun.job.foreign_options import foreign_option
from clusterrun.job.resolve import resolve
from clusterrun.job.this_process import ThisProcess
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.command_lines import Flags, command_line
from tests.imports import imports


@pytest.mark.parametrize(
    ("line", "flags", "words"),
    [
        ("train.py", {}, "train.py"),
        ("", {}, ""),
        ("--nproc-per-node 2 train.py", {"nproc_per_node": "2"}, "train.py"),
        ("--nproc_per_node=2 train.py", {"nproc_per_node": "2"}, "train.py"),
        ("--nproc 2 train.py", {"nproc_per_node": "2"}, "train.py"),
        ("--max_r=3 train.py", {"max_restarts": "3"}, "train.py"),
        ("--nnodes 1 --nnodes 2 train.py", {"nnodes": "2"}, "train.py"),
        ("--rdzv_id 7 train.py", {"rdzv_id": "7"}, "train.py"),
        ("--env A=1 --env=B=2 train.py", {"env": ("A=1", "B=2")}, "train.py"),
        ("-m pkg.train --lr 1", {"module": True}, "pkg.train --lr 1"),
        ("-t=3 -r0:3 train.py -t=3", {"tee": "3", "redirects": "0:3"}, "train.py -t=3"),
        ("-vm pkg.train", {"module": True, "verbose": True}, "pkg.train"),
        ("--no-python ls -l", {"no_python": True}, "ls -l"),
        ("--dry train.py", {"dry_run": True}, "train.py"),
        ("train.py --nnodes 2 --help -x", {}, "train.py --nnodes 2 --help -x"),
        ("train.py -- --nnodes", {}, "train.py -- --nnodes"),
        ("--nnodes rubbish", {"nnodes": "rubbish"}, ""),
        (
            "--pass-local-rank train.py --pass-local-rank",
            {"pass_local_rank": "true"},
            "train.py --pass-local-rank",
        ),
        ("--pass_local=local_rank train.py", {"pass_local_rank": "local_rank"}, "train.py"),
        ("--no-python --pass-local-rank", {"no_python": True, "pass_local_rank": "true"}, ""),
    ],
)
def test_lines(line: str, flags: Flags, words: str) -> None:
    """Values stay text; all that follows SCRIPT is the script's. What was given stays as it is."""
    argv = line.split()

    assert split(argv) == command_line(flags, *words.split())
    assert argv == line.split()


@pytest.mark.parametrize(
    ("line", "words", "after_dashes"),
    [
        ("--config job.yaml -- --lr 1", "--lr 1", True),
        ("--config job.yaml -- --config other --nnodes 2", "--config other --nnodes 2", True),
        ("--config job.yaml -- a -- b", "a -- b", True),
        ("--config job.yaml --", "", True),
        ("--json -- --odd.py --json", "--odd.py --json", True),
        ("-- train.py -- --lr 1", "train.py -- --lr 1", True),
        ("--config job.yaml", "", False),
        ("--config job.yaml train.py -- --lr 1", "train.py -- --lr 1", False),
        ("train.py --", "train.py --", False),
    ],
)
def test_words_after_dashes(line: str, words: str, after_dashes: bool) -> None:
    """They may be arguments of a job file's program; the line stays as it was."""
    found = split(line.split())

    assert (found.words, found.after_dashes) == (tuple(words.split()), after_dashes)
    assert found.quoted() == f"clusterrun {line}"


def test_empty_values_are_values() -> None:
    """A flag given an empty text was given: its complaint is to come."""
    assert split(["--nnodes", "", "", ""]) == command_line({"nnodes": ""}, "", "")


def test_options_keep_the_order_in_which_they_are_typed() -> None:
    """So that a hint repeats the line, and of two names of one option the last counts."""
    line = split(["--nnodes", "2", "--rdzv-id", "a", "-m", "--run-id", "b", "pkg.train"])

    assert line.quoted() == "clusterrun --nnodes 2 --rdzv-id a --run-id b --module pkg.train"
    assert line.options["run_id"][-1].value == "b"
    again = split(["--run-id", "b", "--rdzv-id", "a", "--run-id", "c", "train.py"])
    assert again.options["run_id"][-1].value == "c"


def test_a_repeated_option_does_not_take_a_flag_for_its_value() -> None:
    """Any other option of ours behind it is the next one."""
    with pytest.raises(UsageError, match="--env needs a value, but --json is an option"):
        split(["--env", "--json", "x"])


def test_valid_line_imports_no_error_modules() -> None:
    """What mistakes, help and job files need is not imported on the way to the workers."""
    program = (
        imports(run_command_line, find_command, load_object, ThisProcess, resolve)
        + """
import sys
command, line = find_command(["--nproc", "2", "--module", "train"], "clusterrun")
load_object(command.function)
process = ThisProcess(host="node7", cpus=8, python=sys.executable, run_id="x")
resolve(line, {}, process)
late = {"click", "difflib", "yaml", "shlex", "importlib.metadata"}
late |= {"clusterrun.cli." + name for name in ("completion", "help", "topo")}
late |= {"clusterrun.job.mistakes", "clusterrun.job.foreign_options"}
print(*sorted(late & set(sys.modules)))
"""
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("nnodes", "nnodes"),
        ("nproc", "nproc-per-node"),
        ("nproc_per_node", "nproc-per-node"),
        ("rdzv_e", "rdzv-endpoint"),
        ("rdzv", "rdzv"),
        ("master", "master"),
        ("gpus", "gpus"),
        ("gpus_p", "gpus-per-worker"),
        ("m", "m"),
        ("g", "g"),
        ("j", "j"),
        ("k", "k"),
        ("no_such", "no-such"),
    ],
)
def test_full_names(typed: str, name: str) -> None:
    """One meaning is taken; several or none leave the word for a complaint; a letter is short."""
    assert expand_flag(typed) == name


def test_exact_flag_is_not_ambiguous() -> None:
    """``--master-addr`` is itself, whatever else may begin so one day."""
    assert matching_flags("master-addr") == ("master-addr",)
    assert matching_flags("master") == ("master-addr", "master-port")


@given(name=st.sampled_from(FLAGS), data=st.data())
def test_unambiguous_abbreviation(name: str, data: st.DataObject) -> None:
    """Cut a flag anywhere: what is left means it, if only one flag begins so and none is theirs."""
    cut = name[: data.draw(st.integers(2, len(name)))]
    assume(cut in FLAGS or foreign_option(cut) is None)
    others = [known for known in FLAGS if known.startswith(cut) and known != name]

    meant = expand_flag(cut)

    assert meant == (name if cut == name or not others else cut)


@pytest.mark.parametrize(
    ("word", "is_one"),
    [
        ("--nnodes", True),
        ("--nnodes=1", True),
        ("--dry_run", True),
        ("--dry", True),
        ("--lr", False),
        ("nnodes", False),
        ("-v", False),
        ("--", False),
    ],
)
def test_words_that_are_flags(word: str, is_one: bool) -> None:
    """Long flags of ours, with or without a value behind them."""
    assert is_flag(word) is is_one


@pytest.mark.parametrize(
    ("typed", "as_clusterrun", "as_torchrun"),
    [("ev", "ev", "event-log-handler"), ("st", "st", "st"), ("dry", "dry-run", "dry-run")],
)
def test_as_torchrun_its_own_flags_come_first(
    typed: str, as_clusterrun: str, as_torchrun: str
) -> None:
    """What is clear among torchrun's flags is not made unclear by ours."""
    assert expand_flag(typed) == as_clusterrun
    assert expand_flag(typed, TORCHRUN_FLAGS) == as_torchrun


def test_every_flag_of_torchruns_is_known() -> None:
    """None is left to be taken for a mistake."""
    assert set(TORCHRUN_FLAGS) <= set(FLAGS)


@pytest.mark.parametrize("value", ["-", "-x"])
def test_value_may_begin_with_a_dash_if_it_is_not_an_option(value: str) -> None:
    line = split(["--log-dir", value, "train.py"])

    assert (line.options["log_dir"][0].value, line.words) == (value, ("train.py",))
