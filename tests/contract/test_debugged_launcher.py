"""A debugger, a profiler or a coverage tool that runs the launcher: ``python -m debugpy ... -m clusterrun``."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import indent

import pytest

from tests.contract.debugger import Debugger, first_session, with_endpoints
from tests.contract.launched import OF_ALL_JOBS, Launcher

ROOT = Path(__file__).parent.parent.parent

FOLLOWED = (
    "clusterrun: each worker imports everything itself, because a debugger follows the workers\n"
)

TWO_RANKS = ("-m", "clusterrun", "--nproc-per-node", "2")

SUMS = """
import os
total = 0
for step in range(2):
    total += step
print("rank", os.environ["RANK"], "total", total, __name__)
"""

PLACE = SUMS.splitlines().index("    total += step") + 1

needs_debugpy = pytest.mark.needs("import debugpy")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """Return what starts Python with our launcher's packages."""
    (tmp_path / "sums.py").write_text(SUMS)
    monkeypatch.setitem(OF_ALL_JOBS, *with_endpoints(tmp_path).popitem())
    launcher = Launcher(tmp_path, sys.executable)

    yield launcher

    launcher.close()


DEBUGPY = (
    "-Xfrozen_modules=off",
    *("-m", "debugpy", "--listen", "127.0.0.1:0", "--wait-for-client"),
)


def stops_of_two_ranks(launcher: Debugger, script: Path, place: int) -> list[str]:
    """Debug both ranks from a breakpoint at line ``place`` to their end; return rank and ``step`` of each stop."""
    stops = []
    with ExitStack() as sessions:
        ranks = [sessions.enter_context(launcher.child({script: [place]})) for _ in range(2)]
        for rank in ranks * 2:
            thread, _, line = rank.stopped()
            assert line == place
            stops.append(rank.value(thread, "f'rank {os.environ[\"RANK\"]} step {step}'"))
            rank.resume(thread)
    return sorted(stops)


STOPS = ["'rank 0 step 0'", "'rank 0 step 1'", "'rank 1 step 0'", "'rank 1 step 1'"]


@needs_debugpy
@pytest.mark.parametrize(
    ("words", "notice"),
    [
        ("sums.py", FOLLOWED),
        pytest.param("-m sums", FOLLOWED, marks=pytest.mark.long),
        pytest.param("--start-method spawn sums.py", "", marks=pytest.mark.long),
        pytest.param("--start-method fork sums.py", FOLLOWED, marks=pytest.mark.long),
        pytest.param("--start-method fork -m sums", FOLLOWED, marks=pytest.mark.long),
    ],
)
def test_a_breakpoint_is_hit_in_each_rank(python: Launcher, words: str, notice: str) -> None:
    """No time-out of ours counts meanwhile."""
    job = python.command(*DEBUGPY, *TWO_RANKS, "--hang-timeout", "0.2", *words.split())

    with first_session(python.folder) as launcher:
        launcher.attach({})
        stops = stops_of_two_ranks(launcher, python.folder / "sums.py", PLACE)
        launcher.event("terminated")

    ended = job.ended()
    assert stops == STOPS
    assert sorted(ended.out.splitlines()) == [
        f"[rank {rank}] rank {rank} total 1 __main__" for rank in range(2)
    ]
    assert (ended.code, ended.err) == (0, notice)


CALLS = f"""
import clusterrun

def function():
{indent(SUMS, "    ")}
    return total

if __name__ == "__main__":
    print(clusterrun.launch(function, nproc_per_node=2))
"""


@needs_debugpy
@pytest.mark.long
def test_a_breakpoint_in_a_function_of_a_program(python: Launcher) -> None:
    """The debugger follows from the program into the agent, and from there into the ranks."""
    script = python.folder / "calls.py"
    script.write_text(CALLS)
    job = python.command(*DEBUGPY, str(script))

    with first_session(python.folder) as program:
        program.attach({})
        with program.child({}) as agent:
            stops = stops_of_two_ranks(
                agent, script, CALLS.splitlines().index("        total += step") + 1
            )
        program.event("terminated")

    ended = job.ended()
    assert stops == STOPS
    assert (ended.code, ended.out.splitlines()[-1], ended.err) == (0, "[1, 1]", FOLLOWED)


@needs_debugpy
@pytest.mark.long
def test_a_breakpoint_in_a_rank_that_replaces_the_launcher(python: Launcher) -> None:
    """With ``--exec`` it is the same process, and a child session of the launcher's."""
    places = {python.folder / "sums.py": [PLACE]}
    job = python.command(*DEBUGPY, "-m", "clusterrun", "--exec", "sums.py")

    with first_session(python.folder) as launcher:
        launcher.attach({})
        with launcher.child(places) as rank:
            for _ in range(2):
                thread, _, line = rank.stopped()
                assert line == PLACE
                rank.resume(thread)
            rank.event("terminated")

    ended = job.ended()
    assert (ended.code, ended.out, ended.err) == (0, "rank 0 total 1 __main__\n", "")


@needs_debugpy
def test_the_stop_button_leaves_nothing_behind(python: Launcher) -> None:
    """Neither ranks that have stopped at a breakpoint, nor the helpers of the launcher."""
    script = python.folder / "waits.py"
    script.write_text(f"{SUMS}\nimport time\ntime.sleep(600)")
    places = {script: [PLACE]}
    job = python.command(*DEBUGPY, *TWO_RANKS, "waits.py")

    with first_session(python.folder) as launcher, ExitStack() as sessions:
        launcher.attach({})
        for _ in range(2):
            sessions.enter_context(launcher.child(places)).stopped()
        launcher.stop()
        launcher.event("terminated")

    job.ended()
    assert job.left() == []


@needs_debugpy
def test_the_launch_json_of_the_page(python: Launcher) -> None:
    """Each rank stops at a breakpoint, prints no warning, and the exit code is the job's."""
    page = (ROOT / "docs" / "looking_inside.md").read_text()
    samples = [
        json.loads(text) for text in re.findall(r"^    \{\n(?:    .*\n)+", page, re.MULTILINE)
    ]
    (request,) = (
        configuration
        for sample in samples
        for configuration in sample["configurations"]
        if configuration["request"] == "launch"
    )
    # What VS Code adds; but it would open a terminal.
    request |= {"cwd": str(python.folder), "python": [sys.executable], "console": "internalConsole"}
    script = python.folder / "train.py"
    script.write_text(f"{SUMS}\nraise SystemExit(3)")
    adapter = python.command("-m", "debugpy.adapter", "--host", "127.0.0.1", "--port", "0")

    with first_session(python.folder) as launcher:
        launcher.launch({}, **request)
        stops = stops_of_two_ranks(launcher, script, PLACE)
        code = launcher.event("exited")["body"]["exitCode"]
        launcher.event("terminated")

    ended = adapter.ended()
    assert (stops, code) == (STOPS, 3)
    assert ended.err.startswith(FOLLOWED)
    assert "Debugger warning" not in ended.err


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize(
    "tool",
    [
        ["-m", "cProfile", "-o", "written", "-m"],
        ["-m", "coverage", "run", "--data-file=written", "-m"],
        pytest.param(["-m", "profile", "-o", "written", "-m"], marks=pytest.mark.long),
        pytest.param(
            ["-m", "trace", "--count", "--coverdir", "written", "--module"], marks=pytest.mark.long
        ),
    ],
    ids=lambda tool: tool[1],
)
def test_a_tool_writes_what_it_has_found(python: Launcher, tool: list[str], code: int) -> None:
    """And the exit code is the job's: cProfile, profile and trace catch SystemExit."""
    (python.folder / "ends.py").write_text(f"raise SystemExit({code})")

    ended = python.command(*tool, *TWO_RANKS[1:], "ends.py").ended()

    written = python.folder / "written"
    assert ended.code == code
    assert list(written.iterdir()) if written.is_dir() else written.stat().st_size > 1000


def test_the_report_of_a_profiler_of_a_job_that_fails(python: Launcher) -> None:
    """It is printed to standard output, which is a pipe."""
    (python.folder / "ends.py").write_text("raise SystemExit(3)")

    ended = python.command("-m", "cProfile", *TWO_RANKS, "ends.py").ended()

    assert "function calls" in ended.out
    assert ended.code == 3


PRETENDS = """
import os, runpy, sys, types

def new_fork(*_):
    raise AssertionError("the debugger has followed into a helper")

os.fork = os.posix_spawnp = os.execve = new_fork
sys.modules["pydevd"] = types.ModuleType("pydevd")
monkey = sys.modules["_pydev_bundle.pydev_monkey"] = types.ModuleType("pydev_monkey")
monkey.__dict__.update({functions})
runpy.run_module("clusterrun", run_name="__main__", alter_sys=True)
"""
"""Runs the launcher as a pydevd does that has these functions."""

PATCHES = "{'patch_args': lambda words: [*words[:2], 'wrapper.py', *words[2:]]}"


def pretend(functions: str) -> str:
    return PRETENDS.replace("{functions}", functions)


def test_a_debugger_that_has_changed(python: Launcher) -> None:
    """Ranks run as without the debugger, and one line says why."""
    (python.folder / "pretends.py").write_text(pretend("{'patch_args': lambda words: None}"))

    ended = python.command("pretends.py", "--nproc-per-node", "2", "sums.py").ended()

    why = "patch_args of pydevd returns None"
    assert sorted(ended.out.splitlines()) == [
        f"[rank {rank}] rank {rank} total 1 __main__" for rank in range(2)
    ]
    assert ended.code == 0
    assert ended.err == f"clusterrun: the debugger does not follow the workers: {why}\n"


@pytest.mark.parametrize(
    ("options", "notice"),
    [
        (("--nproc-per-node", "2"), FOLLOWED),
        (("--nproc-per-node", "2", "--start-method", "fork"), FOLLOWED),
        (("--nproc-per-node", "2", "--start-method", "spawn"), ""),
        (("--nproc-per-node", "1"), ""),
    ],
)
def test_the_command_of_a_rank_is_the_debuggers(
    python: Launcher, options: tuple[str, ...], notice: str
) -> None:
    """Each rank runs what ``patch_args`` returns, and no helper is followed."""
    (python.folder / "pretends.py").write_text(pretend(PATCHES))
    (python.folder / "wrapper.py").write_text("import sys; print(*sys.argv)")

    ended = python.command("pretends.py", *options, "sums.py", "--lr", "1").ended()

    lines = [line.partition("] ")[2] or line for line in ended.out.splitlines()]
    assert lines == ["wrapper.py sums.py --lr 1"] * int(options[1])
    assert (ended.code, ended.err) == (0, notice)
