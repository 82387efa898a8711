"""For which scripts torch._dynamo is imported before the fork, and why not for others."""

import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from clusterrun.workers.fork_server.preloading import script_walk
from clusterrun.workers.fork_server.preloading.plan import PreloadPlan, plan_preload

from tests.workers.fork_server.preloading.script_table import Row, rows_of
from tests.workers.fork_server_bench import request_to_prepare

HANGS = "with gloo, torch may hang after {} unless a late import keeps the process group alive"
ANY_VARIABLE = "a variable that it reads may be set before it is imported"


def planned(
    source: str,
    folder: Path,
    command: tuple[str, ...] = (),
    *,
    preload: str | tuple[str, ...] = "auto",
    has_gpus: bool = False,
) -> PreloadPlan:
    """Return the plan for two workers with this script in ``folder``."""
    walk = script_walk.ScriptWalk()
    walk.read_script(dedent(source).encode(), str(folder / "script.py"))
    return plan_preload(request_to_prepare(command, preload=preload, has_gpus=has_gpus), walk)


def why_not(plan: PreloadPlan) -> list[str]:
    """Return why torch._dynamo is left to each worker, if it is."""
    return [why for name, why in plan.left_to_workers if name == "torch._dynamo"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the script's folder, which is first on sys.path; torch 2.13 is installed."""
    installed = tmp_path / "site-packages"
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), *sys.path])
    (installed / "torch/_dynamo").mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/_dynamo/__init__.py"):
        (installed / name).touch()
    set_version(tmp_path, "2.13.0+cpu")
    return tmp_path


def set_version(folder: Path, version: str) -> None:
    """Change the version of the installed torch."""
    text = f"from typing import Optional\n__version__ = '{version}'\n"
    (folder / "site-packages/torch/version.py").write_text(text)


@pytest.mark.parametrize("row", rows_of("dynamo.txt"))
@pytest.mark.parametrize("is_hidden", [False, True], ids=["torch first", "torch hidden"])
def test_script(folder: Path, row: Row, *, is_hidden: bool) -> None:
    """Torch is imported before the first side effect, or after it."""
    for file, text in row.files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    start = "import os, subprocess\nprint()" if is_hidden else "import os, subprocess"

    plan = planned(f"{start}\nimport torch\n{row.script}", folder, has_gpus="with" in row.shows[0])

    reason = HANGS.format(row.found.rpartition(" ")[2]) if "hang" in row.found else row.found
    assert (plan.hides_torch, "torch" in plan.names) == (is_hidden, True)
    assert ("torch._dynamo" in plan.names[-1:]) == (row.found == "preloaded")
    assert why_not(plan) == ([] if row.found in {"preloaded", "not imported"} else [reason])


def test_dynamo_is_imported_after_named_torch(folder: Path) -> None:
    """By the same rules."""
    source = "os.putenv('A', 'b')\nimport torch\ntorch.optim.SGD"

    named = planned("import torch\ntorch.optim.SGD", folder, preload=("mine", "torch"))
    without = planned("import torch", folder, preload=("torch",))
    with_obstacle = planned(source, folder, preload=("torch",))
    both = planned(source, folder, preload=("torch", "torch._dynamo"))
    other = planned(source, folder, preload=("numpy",))

    assert named.names == ["mine", "torch", "torch._dynamo"]
    assert (without.names, why_not(without)) == (["torch"], [])
    assert (with_obstacle.names, why_not(with_obstacle)) == (["torch"], [ANY_VARIABLE])
    assert (both.names, why_not(both)) == (["torch", "torch._dynamo"], [])
    assert (other.names, other.left_to_workers) == (["numpy"], [])


def test_dynamo_is_not_considered_if_workers_are_spawned(folder: Path) -> None:
    plan = planned("os.environ['OMP_NUM_THREADS'] = n\nimport torch\ntorch.optim.SGD", folder)

    assert (plan.why_spawn, plan.names, why_not(plan)) == (plan.why_not_preloaded, [], [])
    assert plan.not_preloaded == "torch"


TOO_OLD = "before torch 2.10 its import makes a folder for one process"
MAY_HANG = HANGS.format("destroy_process_group")


@pytest.mark.parametrize(
    ("version", "destroys", "why"),
    [
        ("2.9.1", "", TOO_OLD),
        ("1.13.0a0+git", "", TOO_OLD),
        ("2", "", TOO_OLD),
        ("by hand", "", TOO_OLD),
        ("2.10.0", "", None),
        ("2.13.0a0+git", "", None),
        ("3.0", "", None),
        # 34 of 34 ranks end with 2.15; all hang with 2.12 and 2.13.
        ("2.12.0", "dist.destroy_process_group()", MAY_HANG),
        ("2.14.1", "dist.destroy_process_group()", MAY_HANG),
        ("2.15.0+cu132", "dist.destroy_process_group()", None),
    ],
)
def test_torch_version(folder: Path, version: str, destroys: str, why: str | None) -> None:
    set_version(folder, version)

    plan = planned(f"import torch\ntorch.optim.SGD; {destroys}", folder)

    assert plan.names == ["torch", "torch._dynamo"][: 1 if why else 2]
    assert why_not(plan) == ([why] if why else [])


@pytest.mark.parametrize(
    ("script", "words", "why"),
    [
        ("init(args.backend or 'nccl'); destroy_process_group()", ["script.py"], []),
        ("init(args.backend or 'nccl'); destroy_process_group()", ["x.py", "--b=gloo"], [MAY_HANG]),
        # NCCL in a path does not count.
        ("dist.destroy_process_group()", ["/home/me/nccl/script.py"], [MAY_HANG]),
    ],
)
def test_backend_on_the_command_line(
    folder: Path, script: str, words: list[str], why: list[str]
) -> None:
    source = f"import torch\ntorch.optim.SGD; {script}"

    assert why_not(planned(source, folder, ("python", *words), has_gpus=True)) == why


def test_torch_without_dynamo(folder: Path) -> None:
    """No reason is reported."""
    (folder / "site-packages/torch/_dynamo/__init__.py").unlink()
    (folder / "site-packages/torch/_dynamo").rmdir()

    plan = planned("import torch\ntorch.optim.SGD", folder)

    assert (plan.names, plan.left_to_workers) == (["torch"], [])


def test_large_module(folder: Path) -> None:
    (folder / "mine.py").write_text("x = 1\n" * 20_000)

    plan = planned("import torch\ntorch.optim.SGD\ndef f():\n    import mine", folder)

    assert plan.names == ["torch", "torch._dynamo"]


def test_time_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine.py").write_text("x = 1")
    seconds = iter((0.0, 0.1, 3.0))
    monkeypatch.setattr(script_walk, "time", SimpleNamespace(process_time=seconds.__next__))

    plan = planned("import torch\ntorch.optim.SGD\ndef f():\n    import mine", folder)

    assert why_not(plan) == ["to read all of it takes more than 2 s"]


def test_deep_expression(folder: Path) -> None:
    """Deeper than Python's own stack."""
    chain = "x" + ".f()" * 900

    plan = planned(f"import torch\ntorch.optim.SGD\ny = {chain}", folder)

    assert why_not(plan) == []


@pytest.mark.parametrize("main", ["train", "__main__"])
def test_module_run_by_m_is_read(folder: Path, main: str) -> None:
    """Even if the first side effect is in its package."""
    package = folder / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .model import Net\n__version__ = version('mine')")
    (package / "model.py").write_text("import torch\ntorch.optim.SGD")
    (package / f"{main}.py").write_text("import os\nos.environ['TORCH_LOGS'] = '1'")
    walk = script_walk.ScriptWalk()
    walk.read_module("mine" if main == "__main__" else f"mine.{main}")

    plan = plan_preload(request_to_prepare(), walk)

    assert plan.names == ["torch"]
    assert why_not(plan) == ["TORCH_LOGS may be set before it is imported"]
