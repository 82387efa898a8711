"""The launcher below a debugger, a profiler or a coverage tool: ``python -m debugpy ... -m clusterrun``."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import indent

import pytest

from tests.contract.debugger import Debugger, first_session, with_endpoints
from tests.contract.launched import COMMON_VARIABLES, Launcher

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

LINE = SUMS.splitlines().index("    total += step") + 1

needs_debugpy = pytest.mark.needs("import debugpy")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """Return a launcher of Python with clusterrun's packages."""
    (tmp_path / "sums.py").write_text(SUMS)
    for name, value in with_endpoints(tmp_path).items():
        monkeypatch.setitem(COMMON_VARIABLES, name, value)
    launcher = Launcher(tmp_path, sys.executable)

    yield launcher

    launcher.close()


DEBUGPY = (
    "-Xfrozen_modules=off",
    *("-m", "debugpy", "--listen", "127.0.0.1:0", "--wait-for-client"),
)


def stops_of_two_ranks(launcher: Debugger, script: Path, breakpoint_line: int) -> list[str]:
    """Debug both ranks to their end; return rank and ``step`` of each stop."""
    stops = []
    with ExitStack() as sessions:
        ranks = [
            sessions.enter_context(launcher.child({script: [breakpoint_line]})) for _ in range(2)
        ]
        for rank in ranks * 2:
            thread, _, line = rank.stopped()
            assert line == breakpoint_line
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
def test_breakpoint_is_hit_in_each_rank(python: Launcher, words: str, notice: str) -> None:
    """Time at a breakpoint does not count as a hang."""
    job = python.command(*DEBUGPY, *TWO_RANKS, "--hang-timeout", "0.2", *words.split())

    with first_session(python.folder) as launcher:
        launcher.attach({})
        stops = stops_of_two_ranks(launcher, python.folder / "sums.py", LINE)
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
def test_breakpoint_in_a_launched_function(python: Launcher) -> None:
    """The debugger follows from the program to the agent and to the ranks."""
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
def test_breakpoint_in_rank_with_exec(python: Launcher) -> None:
    """It is the same process, and a child session of the launcher's."""
    breakpoints = {python.folder / "sums.py": [LINE]}
    job = python.command(*DEBUGPY, "-m", "clusterrun", "--exec", "sums.py")

    with first_session(python.folder) as launcher:
        launcher.attach({})
        with launcher.child(breakpoints) as rank:
            for _ in range(2):
                thread, _, line = rank.stopped()
                assert line == LINE
                rank.resume(thread)
            rank.event("terminated")

    ended = job.ended()
    assert (ended.code, ended.out, ended.err) == (0, "rank 0 total 1 __main__\n", "")


@needs_debugpy
def test_stop_button_leaves_no_process(python: Launcher) -> None:
    script = python.folder / "waits.py"
    script.write_text(f"{SUMS}\nimport time\ntime.sleep(600)")
    breakpoints = {script: [LINE]}
    job = python.command(*DEBUGPY, *TWO_RANKS, "waits.py")

    with first_session(python.folder) as launcher, ExitStack() as sessions:
        launcher.attach({})
        for _ in range(2):
            sessions.enter_context(launcher.child(breakpoints)).stopped()
        launcher.stop()
        launcher.event("terminated")

    job.ended()
    assert job.left() == []


@needs_debugpy
def test_launch_json_of_the_page(python: Launcher) -> None:
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
    # VS Code adds these, but opens a terminal.
    request |= {"cwd": str(python.folder), "python": [sys.executable], "console": "internalConsole"}
    script = python.folder / "train.py"
    script.write_text(f"{SUMS}\nraise SystemExit(3)")
    adapter = python.command("-m", "debugpy.adapter", "--host", "127.0.0.1", "--port", "0")

    with first_session(python.folder) as launcher:
        launcher.launch({}, **request)
        stops = stops_of_two_ranks(launcher, script, LINE)
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
def test_tool_writes_its_file_and_exit_code_is_that_of_the_job(
    python: Launcher, tool: list[str], code: int
) -> None:
    """cProfile, profile and trace catch SystemExit."""
    (python.folder / "ends.py").write_text(f"raise SystemExit({code})")

    ended = python.command(*tool, *TWO_RANKS[1:], "ends.py").ended()

    written = python.folder / "written"
    assert ended.code == code
    assert list(written.iterdir()) if written.is_dir() else written.stat().st_size > 1000


def test_profiler_prints_its_report_of_failed_job(python: Launcher) -> None:
    (python.folder / "ends.py").write_text("raise SystemExit(3)")

    ended = python.command("-m", "cProfile", *TWO_RANKS, "ends.py").ended()

    assert "function calls" in ended.out
    assert ended.code == 3


FAKE_DEBUGGER = """
import os, runpy, sys, types

def new_fork(*_):
    raise AssertionError("the debugger has followed into a helper")

os.fork = os.posix_spawnp = os.execve = new_fork
sys.modules["pydevd"] = types.ModuleType("pydevd")
monkey = sys.modules["_pydev_bundle.pydev_monkey"] = types.ModuleType("pydev_monkey")
monkey.__dict__.update({functions})
runpy.run_module("clusterrun", run_name="__main__", alter_sys=True)
"""
"""Runs the launcher as pydevd does, with these functions."""

PATCHES = "{'patch_args': lambda words: [*words[:2], 'wrapper.py', *words[2:]]}"


def fake_debugger(functions: str) -> str:
    return FAKE_DEBUGGER.replace("{functions}", functions)


@pytest.mark.parametrize(
    ("workers", "options", "patch_args", "notice"),
    [
        (2, (), PATCHES, FOLLOWED),
        (2, ("--start-method", "fork"), PATCHES, FOLLOWED),
        (2, ("--start-method", "spawn"), PATCHES, ""),
        (1, (), PATCHES, ""),
        (
            *(2, (), "{'patch_args': lambda words: None}"),
            "clusterrun: the debugger does not follow the workers: patch_args of pydevd returns None\n",
        ),
    ],
)
def test_command_of_a_rank_is_edited_by_the_debugger(
    python: Launcher, workers: int, options: tuple[str, ...], patch_args: str, notice: str
) -> None:
    """The debugger follows no helper process. With an unknown debugger, ranks run without it."""
    (python.folder / "debugger.py").write_text(fake_debugger(patch_args))
    (python.folder / "wrapper.py").write_text("import sys; print(*sys.argv)")
    (python.folder / "sums.py").write_text("import sys; print('script', *sys.argv)")

    words = (f"--nproc-per-node={workers}", *options, "sums.py", "--lr", "1")
    ended = python.command("debugger.py", *words).ended()

    lines = [line.partition("] ")[2] or line for line in ended.out.splitlines()]
    program = "wrapper.py" if patch_args == PATCHES else "script"
    assert lines == [f"{program} sums.py --lr 1"] * workers
    assert (ended.code, ended.err) == (0, notice)
