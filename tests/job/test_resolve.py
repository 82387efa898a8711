"""All sources make one job, and every value has its origin."""

from pathlib import Path

import pytest
from clusterrun.job.declarations import Setting
from clusterrun.job.resolve import resolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.command_lines import Flags, command_line
from tests.described import PROCESS, describe

pytestmark = pytest.mark.usefixtures("script")


@given(sources=st.sets(st.sampled_from(["flag", "CLUSTERRUN_", "PET_", "file"])))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_strongest_source_wins(sources: set[str]) -> None:
    """Flags > CLUSTERRUN_* > PET_* > the job file > defaults."""
    Path("job.yaml").write_text("\nmax_restarts: 4\n" if "file" in sources else "")
    flags = {"config": "job.yaml"} | ({"max_restarts": "1"} if "flag" in sources else {})
    variables = {"CLUSTERRUN_": "2", "PET_": "3"}
    environ = {f"{name}MAX_RESTARTS": variables.get(name, "") for name in sorted(sources)}

    found = describe("train.py", flags=flags, environ=environ).job.setting("max_restarts")

    order = {
        "flag": Setting(1, "--max-restarts"),
        "CLUSTERRUN_": Setting(2, "CLUSTERRUN_MAX_RESTARTS"),
        "PET_": Setting(3, "PET_MAX_RESTARTS"),
        "file": Setting(4, "job.yaml:2 max_restarts"),
    }
    set_by = [setting for name, setting in order.items() if name in sources]
    assert found == next(iter(set_by), Setting(0, "default"))


def test_env_is_merged_by_name() -> None:
    """For each name: --env > CLUSTERRUN_ENV > PET_ENV > the job file."""
    Path("job.yaml").write_text("env:\n  A: file\n  B: file\n  C: file\n  D: no\n")
    environ = {"CLUSTERRUN_ENV": "A=ours\nB=ours", "PET_ENV": "A=pet\nB=pet\nC=pet"}

    job = describe(
        "train.py", flags={"config": "job.yaml", "env": ("A=x", "A=flag")}, environ=environ
    ).job

    assert {name: Setting(text, job.origin(f"env.{name}")) for name, text in job.env.items()} == {
        "A": Setting("flag", "--env"),
        "B": Setting("ours", "CLUSTERRUN_ENV"),
        "C": Setting("pet", "PET_ENV"),
        "D": Setting("no", "job.yaml:5 env.D"),
    }


@pytest.mark.parametrize(
    ("file", "typed", "program", "args"),
    [
        ("script: train.py", "--lr 1", "train.py", "--lr 1"),
        ("script: train.py\nargs: [--lr, 0]", "--lr 1", "train.py", "--lr 0 --lr 1"),
        ("script: train.py\nargs: [--lr, 0]", "", "train.py", "--lr 0"),
        ("script: train.py", "-- --nnodes 2", "train.py", "-- --nnodes 2"),
        ("script: train.py", "other.py -- --lr 1", "train.py", "other.py -- --lr 1"),
        ("module: json.tool\nargs: [--lr, 0]", "--lr 1", "json.tool", "--lr 0 --lr 1"),
        ("script: /bin/echo\nno_python: yes", "-n x", "/bin/echo", "-n x"),
        ("max_restarts: 1", "train.py --lr 1", "train.py", "--lr 1"),
        ("max_restarts: 1", "train.py -- --lr 1", "train.py", "--lr 1"),
        (
            "script: train.py\nservices:\n  server: {command: [/bin/echo, x]}",
            "--lr 1",
            "train.py",
            "--lr 1",
        ),
    ],
)
def test_words_after_dashes_are_arguments_of_the_files_script(
    file: str, typed: str, program: str, args: str
) -> None:
    """They follow the file's own arguments. If the file has no program, the first word is the script."""
    Path("job.yaml").write_text(f"{file}\n")
    line = command_line({"config": "job.yaml"}, *typed.split())

    script = resolve(replace(line, after_dashes=True), {}, PROCESS).job.script

    assert (script.name, script.args) == (program, tuple(args.split()))


@pytest.mark.parametrize(
    ("words", "after_dashes", "origin"),
    [
        ("", False, "job.yaml:2 args"),
        ("--lr 1", True, "job.yaml:2 args, command line"),
        ("train.py --lr 1", False, "command line"),
    ],
)
def test_origin_of_arguments(words: str, *, after_dashes: bool, origin: str) -> None:
    Path("job.yaml").write_text("script: train.py\nargs: [--lr, 0]\n")
    line = replace(command_line({"config": "job.yaml"}, *words.split()), after_dashes=after_dashes)

    job = resolve(line, {}, PROCESS).job

    assert job.origin("args") == origin


def test_topo_ignores_the_script(folder: Path) -> None:
    """Other keys of the job file apply."""
    (folder / "job.yaml").write_text("script: missing.py\nnproc_per_node: 3\n")
    flags: Flags = {"config": "job.yaml", "json": True}

    resolved = resolve(command_line(flags), {}, PROCESS, for_topo=True)

    assert resolved.job.setting("nproc_per_node") == Setting(3, "job.yaml:2 nproc_per_node")
    assert resolved.job.origin("script") == "clusterrun topo"
    assert (resolved.dry_run, resolved.as_json) == (True, True)
