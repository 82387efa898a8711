"""For which scripts torch._dynamo is imported before the fork, and why not for others."""

import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from clusterrun.workers.fork_server.preloading import script_walk
from clusterrun.workers.fork_server.preloading.plan import PreloadPlan, plan_preload

from tests.workers.fork_server_bench import request_to_prepare

HANGS = "with gloo, torch may hang after {} unless a late import keeps the process group alive"
DESTROY = "destroy_process_group"
ANY_VARIABLE = "a variable that it reads may be set before it is imported"

USE_DYNAMO = {
    "an optimizer": "torch.optim.SGD(model.parameters())",
    "an optimizer that is imported": "from torch.optim import AdamW",
    "DDP": "from torch.nn.parallel import DistributedDataParallel as D",
    "DDP by its usual name": "DDP(model)",
    "FSDP": "from torch.distributed.fsdp import fully_shard",
    "a trainer": "from transformers import Trainer",
    "a method named eval": "torch.optim.SGD(model.eval())",
    "variables that are read": """
        torch.optim.SGD
        os.environ["HOME"], os.environ.get("RANK"), "CI" in os.environ, dict(os.environ)
        subprocess.run("x", env=os.environ), {**os.environ}, os.environ | {}, str(os.environ)
        [name for name in os.environ], f"{os.environ}", start(**os.environ)
        """,
    "variables that are set and that it does not read": """
        torch.optim.SGD
        os.environ["OMP_NUM_THREADS"] = os.environ["PYTHONHASHSEED"] = "1"
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        os.environ.update({"NCCL_DEBUG": "INFO"}, MINE="1")
        del os.environ["MINE"]
        """,
    "warnings that are not shown": """
        import warnings
        warnings.filterwarnings("ignore")
        torch.optim.SGD
        """,
    "a switch of a backend": """
        torch.backends.cudnn.benchmark = True
        torch.optim.SGD
        """,
    "a variable named end": """
        torch.optim.SGD
        end = time.time()
        """,
    "a search path that is read, and made longer": """
        import sys
        sys.path.append("/mine")
        torch.optim.SGD(sys.path[0])
        """,
    "what only type checkers import": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            import jaxtyping
        torch.optim.SGD
        """,
    "packages that are on no list": """
        import bitsandbytes
        def log():
            import wandb
        torch.optim.SGD
        """,
    "an import of any module": """
        importlib.import_module(name)
        from open import *
        torch.optim.SGD
        """,
    "code that is executed": """
        exec(open("configurator.py").read()); eval("x")
        torch.optim.SGD
        """,
    "objects that are made by a configuration": """
        @hydra.main()
        def main(config): hydra.utils.instantiate(config)
        torch.optim.SGD
        """,
    "code of a model's": """
        AutoModel.from_pretrained("x", trust_remote_code=True)
        torch.optim.SGD
        """,
    "another module, or a function, in place of one": """
        sys.modules["triton"] = None
        torch.load = mine
        torch.optim.SGD
        """,
    "another folder": """
        os.chdir("/")
        torch.optim.SGD
        """,
    "modules from elsewhere": """
        import sys, own
        sys.path.insert(0, "/mine")
        torch.optim.SGD
        """,
    "warnings that are caught": """
        with warnings.catch_warnings(): warnings.resetwarnings()
        torch.optim.SGD
        """,
    "a variable set only for type checkers": """
        if TYPE_CHECKING:
            os.environ["TORCH_LOGS"] = "x"
        torch.optim.SGD
        """,
}

WITHOUT_DYNAMO = {
    "no training": "print(torch.ones(2))",
    "an all_reduce": "torch.distributed.all_reduce(torch.ones(2))",
}

OBSTACLES = {
    "a variable": (
        "os.environ['TORCHDYNAMO_DISABLE'] = '1'",
        "TORCHDYNAMO_DISABLE may be set before it is imported",
    ),
    "a variable by setdefault": (
        "os.environ.setdefault('TORCH_LOGS', '+dynamo')",
        "TORCH_LOGS may be set before it is imported",
    ),
    "a variable by update": (
        "os.environ.update(CXX='g++')",
        "CXX may be set before it is imported",
    ),
    "a variable in bytes": ("os.environb[b'CXX'] = b'g++'", "CXX may be set before it is imported"),
    "a variable that is deleted": (
        "del os.environ['HOME']",
        "HOME may be set before it is imported",
    ),
    "a variable that is popped": (
        "os.environ.pop('CI', None)",
        "CI may be set before it is imported",
    ),
    "any variable": ("os.environ[name] = '1'", ANY_VARIABLE),
    "any variables": ("os.environ.update(found)", ANY_VARIABLE),
    "any variables by words": ("os.environ.update(**found)", ANY_VARIABLE),
    "any variables by an operator": ("os.environ |= found", ANY_VARIABLE),
    "a method of it": ("put = os.environ.__setitem__", ANY_VARIABLE),
    "putenv by another name": ("from os import putenv as p", ANY_VARIABLE),
    "putenv": ("os.putenv('A', 'b')", ANY_VARIABLE),
    "loggers set up by a dictionary": (
        "logging.config.dictConfig({})",
        "the script uses dictConfig",
    ),
    "loggers set up by a file": ("fileConfig('x')", "the script uses fileConfig"),
    "another class of loggers": ("logging.setLoggerClass(X)", "the script uses setLoggerClass"),
    "a name of it that is imported": (
        "from logging.config import dictConfig as d",
        "the script uses dictConfig",
    ),
    "callbacks at a fork": ("atexit._ncallbacks()", "the script uses _ncallbacks"),
    "a test's variable": ("monkeypatch.setenv(a, b); monkeypatch.delenv(a)", ANY_VARIABLE),
    "all loggers": ("logging.root.manager.loggerDict", "the script uses loggerDict"),
    "an own module that is not Python": (
        "import broken",
        "broken.py can't be read",
    ),
    "warnings that are errors": (
        "import warnings; warnings.simplefilter('error')",
        "its warnings may be errors by then",
    ),
    "an own module that is not text": (
        "import compiled",
        "compiled.so can't be read",
    ),
}


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


@pytest.mark.parametrize("text", USE_DYNAMO.values(), ids=USE_DYNAMO)
def test_dynamo_is_imported_last(folder: Path, text: str) -> None:
    plan = planned(f"import os, subprocess, torch\n{dedent(text)}", folder)

    assert (plan.names[-1], why_not(plan)) == ("torch._dynamo", [])
    assert "torch" in plan.names


@pytest.mark.parametrize("text", USE_DYNAMO.values(), ids=USE_DYNAMO)
def test_dynamo_is_imported_after_hidden_torch(folder: Path, text: str) -> None:
    plan = planned(f"import os\nprint()\nimport torch\n{dedent(text)}", folder)

    assert (plan.hides_torch, plan.names[-1]) == (True, "torch._dynamo")


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


@pytest.mark.parametrize("text", WITHOUT_DYNAMO.values(), ids=WITHOUT_DYNAMO)
def test_script_without_training(folder: Path, text: str) -> None:
    plan = planned(f"import torch\n{text}", folder)

    assert (plan.names, plan.left_to_workers) == (["torch"], [])


@pytest.mark.parametrize(("text", "why"), OBSTACLES.values(), ids=OBSTACLES)
def test_obstacle_leaves_dynamo_to_workers(folder: Path, text: str, why: str) -> None:
    (folder / "compiled.so").touch()
    (folder / "broken.py").write_text("def")
    source = f"import os, torch\ndef main():\n    torch.optim.SGD\n{text}"

    plan = planned(source, folder)

    assert plan.names[:2] == ["os", "torch"]
    assert "torch._dynamo" not in plan.names
    assert why_not(plan) == [why]


@pytest.mark.parametrize(
    ("has_gpus", "text", "hangs_after"),
    [
        (False, "dist.init_process_group('nccl'); dist.destroy_process_group()", DESTROY),
        (True, "dist.init_process_group('nccl'); dist.destroy_process_group()", ""),
        (True, "init('nccl' if torch.cuda.is_available() else 'gloo'); dist.destroy_process_group()", ""),
        (False, "init('nccl' if torch.cuda.is_available() else 'gloo'); dist.destroy_process_group()", DESTROY),
        (True, "torch.cuda.set_device(0); dist.destroy_process_group()", DESTROY),
        (True, "dist.new_group(backend='cpu:gloo,cuda:nccl'); dist.destroy_process_group()", DESTROY),
        (False, "getattr(dist, 'destroy_process_group')()", DESTROY),
        (False, "accelerator.end_training()", "end_training"),
        (False, "Trainer(model).end()", "end"),
        (False, "re.match('x', 'x').end()", ""),
    ],
)  # fmt: skip
def test_torch_may_hang_with_gloo(
    folder: Path, *, has_gpus: bool, text: str, hangs_after: str
) -> None:
    """Dynamo is left to the workers if gloo may be used: see docs/binding.md."""
    source = f"import torch\nimport torch.distributed as dist\ntorch.optim.SGD\n{text}"

    plan = planned(source, folder, has_gpus=has_gpus)

    why = HANGS.format(hangs_after)
    assert why_not(plan) == ([why] if hangs_after else [])


@pytest.mark.parametrize(
    ("version", "may_hang"), [("2.12.0", True), ("2.14.1", True), ("2.15.0+cu132", False)]
)
def test_torch_version_with_race(folder: Path, version: str, *, may_hang: bool) -> None:
    """34 of 34 ranks end with 2.15; all hang with 2.12 and 2.13."""
    set_version(folder, version)

    plan = planned("import torch\ntorch.optim.SGD; dist.destroy_process_group()", folder)

    assert why_not(plan) == ([HANGS.format(DESTROY)] if may_hang else [])


def test_gloo_on_the_command_line(folder: Path) -> None:
    """Even if the text names only NCCL."""
    source = "import torch\ntorch.optim.SGD; init(args.backend or 'nccl'); destroy_process_group()"

    by_gloo = planned(source, folder, ("python", "script.py", "--backend=gloo"), has_gpus=True)
    by_nccl = planned(source, folder, ("python", "script.py"), has_gpus=True)

    assert why_not(by_gloo) == [HANGS.format(DESTROY)]
    assert why_not(by_nccl) == []


def test_nccl_in_a_path_does_not_count(folder: Path) -> None:
    source = "import torch\ntorch.optim.SGD; dist.destroy_process_group()"

    plan = planned(source, folder, ("python", "/home/me/nccl/script.py"), has_gpus=True)

    assert why_not(plan) == [HANGS.format(DESTROY)]


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0a0+git", "2", "by hand"])
def test_old_or_unknown_torch_version(folder: Path, version: str) -> None:
    set_version(folder, version)

    plan = planned("import torch\ntorch.optim.SGD", folder)

    assert why_not(plan) == ["before torch 2.10 its import makes a folder for one process"]


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0a0+git", "3.0"])
def test_new_torch_version(folder: Path, version: str) -> None:
    set_version(folder, version)

    assert planned("import torch\ntorch.optim.SGD", folder).names == ["torch", "torch._dynamo"]


def test_torch_without_dynamo(folder: Path) -> None:
    """No reason is reported."""
    (folder / "site-packages/torch/_dynamo/__init__.py").unlink()
    (folder / "site-packages/torch/_dynamo").rmdir()

    plan = planned("import torch\ntorch.optim.SGD", folder)

    assert (plan.names, plan.left_to_workers) == (["torch"], [])


def test_own_modules_are_read_wherever_they_are_imported(folder: Path) -> None:
    """Including imports in functions and packages."""
    (folder / "mine").mkdir()
    (folder / "mine/__init__.py").write_text("from . import models")
    (folder / "mine/models.py").write_text("from .layers import unknown_to_us")
    (folder / "mine/layers.py").write_text("unknown_to_us = 1")
    source = """
        import torch
        def main():
            from mine import models
            torch.optim.SGD
        """
    before = planned(source, folder)
    (folder / "mine/layers.py").write_text("os.environ['TORCH_LOGS'] = 'x'")

    after = planned(source, folder)

    assert before.names == ["torch", "torch._dynamo"]
    assert why_not(after) == ["TORCH_LOGS may be set before it is imported"]


def test_own_module_with_the_name_of_a_known_package(folder: Path) -> None:
    (folder / "datasets.py").write_text("import os; os.environ['TORCH_LOGS'] = '1'")

    plan = planned("import torch, datasets\ntorch.optim.SGD", folder)

    assert why_not(plan) == ["TORCH_LOGS may be set before it is imported"]


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


def test_package_without_init(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src/models.py").write_text("import torch")
    source = (
        "import torch\ntorch.optim.SGD\ndef f():\n    from src import models\n    import src.models"
    )

    assert planned(source, folder).names == ["torch", "torch._dynamo"]

    (folder / "src/models.py").write_text("os.environ['TORCH_LOGS'] = 'x'")

    assert planned(source, folder).names == ["torch"]


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
