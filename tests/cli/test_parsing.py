"""The command line is split into raw flags and the words from SCRIPT on."""

import subprocess
import sys

import pytest

from tests.cli.door import (
    OPTIONS,
    CommandLine,
    Flags,
    FlagValue,
    Kind,
    Option,
    ThisProcess,
    find_command,
    parse,
    resolve,
    run_command_line,
)
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
        ("--json -- --odd.py --json", {"json": True}, "--odd.py --json"),
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
    """Values stay text; all that follows SCRIPT is the script's."""
    assert parse(line.split()) == CommandLine(flags, tuple(words.split()))


def test_empty_values_are_values() -> None:
    """A flag given an empty text was given: its complaint is to come."""
    assert parse(["--nnodes", "", "", ""]) == CommandLine({"nnodes": ""}, ("", ""))


def test_the_callers_list_is_left_alone() -> None:
    """Splitting takes nothing away from what it was given."""
    argv = ["--nnodes", "1", "train.py"]

    parse(argv)

    assert argv == ["--nnodes", "1", "train.py"]


@pytest.mark.parametrize("option", OPTIONS, ids=[option.name for option in OPTIONS])
def test_every_option_has_its_flag(option: Option[object]) -> None:
    """Each row of the table is a flag, under each of its names."""
    kinds: dict[Kind, FlagValue] = {
        Kind.FLAG: True,
        Kind.VALUE: "x",
        Kind.OPTIONAL: "true",
        Kind.REPEATED: ("x",),
    }
    given = kinds[option.kind]

    for name in option.names:
        spelled = f"--{name}"
        argv = [spelled] if option.kind in {Kind.FLAG, Kind.OPTIONAL} else [spelled, "x"]
        assert parse([*argv, "train.py"]) == CommandLine({name: given}, ("train.py",))


def test_a_right_line_loads_only_what_it_needs() -> None:
    """What mistakes, help and job files need is not imported on the way to the workers."""
    program = (
        imports(run_command_line, find_command, ThisProcess, resolve)
        + """
import sys
command, line = find_command(["--nproc", "2", "--module", "train"], "clusterrun")
command.load()
process = ThisProcess(host="node7", cpus=8, python=sys.executable, run_id="x")
resolve(line, {}, process)
late = {"ClusterShell", "difflib", "yaml", "shlex", "importlib.metadata", "clusterrun.cli.commands.help"}
late |= {"clusterrun.cli.completion", "clusterrun.cli.commands.topo", "clusterrun.cli.options_of_other_launchers", "clusterrun.sources.other_launchers.foreign_options"}
print(*sorted(late & set(sys.modules)))
print(*(name for name in sys.modules if name == "click.shell_completion"))
"""
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == []
