"""Which scripts have torch._dynamo imported before the fork, and why others have not."""

import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.workers.door import add_followers, leading_imports, packages

HANGS = "torch may hang after {} with gloo if the group is not kept by a late import"
DESTROY = "destroy_process_group"
ANY_VARIABLE = "a variable that it reads may be set before it"

NEED_IT = {
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
    "a package that is left to each worker": """
        def log():
            import wandb
        torch.optim.SGD
        """,
}

DO_NOT = {
    "no training": "print(torch.ones(2))",
    "an all_reduce": "torch.distributed.all_reduce(torch.ones(2))",
}

IN_DOUBT = {
    "an unknown package": (
        "def f():\n    import bitsandbytes",
        "bitsandbytes may be imported before it",
    ),
    "a variable": (
        "os.environ['TORCHDYNAMO_DISABLE'] = '1'",
        "TORCHDYNAMO_DISABLE may be set before it",
    ),
    "a variable by setdefault": (
        "os.environ.setdefault('TORCH_LOGS', '+dynamo')",
        "TORCH_LOGS may be set before it",
    ),
    "a variable by update": ("os.environ.update(CXX='g++')", "CXX may be set before it"),
    "a variable in bytes": ("os.environb[b'CXX'] = b'g++'", "CXX may be set before it"),
    "a variable that is deleted": ("del os.environ['HOME']", "HOME may be set before it"),
    "a variable that is popped": ("os.environ.pop('CI', None)", "CI may be set before it"),
    "any variable": ("os.environ[name] = '1'", ANY_VARIABLE),
    "any variables": ("os.environ.update(found)", ANY_VARIABLE),
    "any variables by words": ("os.environ.update(**found)", ANY_VARIABLE),
    "any variables by an operator": ("os.environ |= found", ANY_VARIABLE),
    "the environment by another name": ("mine = os.environ", ANY_VARIABLE),
    "the environment given away": ("set_up(os.environ)", ANY_VARIABLE),
    "a method of it": ("put = os.environ.__setitem__", ANY_VARIABLE),
    "the environment by another name that is imported": (
        "from os import environ as e\ne['TORCH_LOGS'] = '1'",
        ANY_VARIABLE,
    ),
    "the environment by its name": ("getattr(os, 'environ')", ANY_VARIABLE),
    "the environment in a dictionary": ("d = {'e': os.environ}", ANY_VARIABLE),
    "the environment as an argument env": ("set_up(env=os.environ)", ANY_VARIABLE),
    "a test's patch": ("mock.patch.dict(os.environ, {'TORCH_LOGS': '1'})", ANY_VARIABLE),
    "a test's patch by name": ("mock.patch.dict('os.environ', TORCH_LOGS='1')", ANY_VARIABLE),
    "putenv by another name": ("from os import putenv as p", ANY_VARIABLE),
    "putenv": ("os.putenv('A', 'b')", ANY_VARIABLE),
    "hydra.utils.instantiate": (
        "hydra.utils.instantiate(config)",
        "instantiate may run any code before it",
    ),
    "exec": ("exec(open('configurator.py').read())", "exec may run any code before it"),
    "exec of builtins": ("builtins.exec('x')", "exec may run any code before it"),
    "eval": ("eval('x')", "eval may run any code before it"),
    "import_module by another name": (
        "from importlib import import_module as i",
        "import_module may run any code before it",
    ),
    "code of a model's": (
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "trust_remote_code may run any code before it",
    ),
    "another module in place of one": (
        "sys.modules['triton'] = None",
        "what replaces a module may run any code before it",
    ),
    "another function in place of torch's": (
        "torch.load = mine",
        "what replaces torch.load may run any code before it",
    ),
    "import_module": ("importlib.import_module(name)", "import_module may run any code before it"),
    "loggers set up anew": ("logging.config.dictConfig({})", "the script uses dictConfig"),
    "another folder": ("os.chdir('/')", "the script uses chdir"),
    "all loggers": ("logging.root.manager.loggerDict", "the script uses loggerDict"),
    "hydra's options": ("import hydra", "the script uses hydra"),
    "modules from elsewhere": (
        "import sys, own; sys.path.insert(0, '/mine')",
        "modules may come from another folder than it seems",
    ),
    "a module of the user's that is no Python": (
        "import broken",
        "broken.py may do anything before it",
    ),
    "warnings that are errors": (
        "import warnings; warnings.simplefilter('error')",
        "its warnings may be errors by then",
    ),
    "all modules of a package": ("from open import *", "open may be imported before it"),
    "a module of the user's that is not text": (
        "import compiled",
        "compiled may be imported before it",
    ),
}


def chosen(
    source: str, folder: Path, arguments: tuple[str, ...] = (), *, has_gpus: bool = False
) -> packages.Choice:
    """Return what is preloaded for two workers with this script in ``folder``, as the server chooses."""
    reading = leading_imports.LeadingImports()
    reading.read_script(dedent(source).encode(), str(folder / "script.py"))
    choice = packages.choose("auto", reading, 2)
    add_followers(choice, reading, arguments, has_gpus=has_gpus)
    return choice


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the script, which is first on sys.path; a torch of 2.13 is installed."""
    installed = tmp_path / "site-packages"
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(installed), *sys.path])
    (installed / "torch/_dynamo").mkdir(parents=True)
    for name in ("torch/__init__.py", "torch/_dynamo/__init__.py"):
        (installed / name).touch()
    set_version(tmp_path, "2.13.0+cpu")
    return tmp_path


def set_version(folder: Path, version: str) -> None:
    """Have the torch that is installed be of this version."""
    text = f"from typing import Optional\n__version__ = '{version}'\n"
    (folder / "site-packages/torch/version.py").write_text(text)


@pytest.mark.parametrize("text", NEED_IT.values(), ids=NEED_IT)
def test_it_is_imported_last(folder: Path, text: str) -> None:
    """After all that the script imports."""
    choice = chosen(f"import os, subprocess, torch\n{dedent(text)}", folder)

    assert (choice.names[-1], choice.left_out[1:]) == ("torch._dynamo", [])


@pytest.mark.parametrize("text", DO_NOT.values(), ids=DO_NOT)
def test_a_script_that_does_not_train_starts_as_before(folder: Path, text: str) -> None:
    choice = chosen(f"import torch\n{text}", folder)

    assert (choice.names, choice.left_out) == (["torch"], [])


@pytest.mark.parametrize(("text", "why"), IN_DOUBT.values(), ids=IN_DOUBT)
def test_it_is_left_out_in_doubt(folder: Path, text: str, why: str) -> None:
    """With the reason, for ``-v``."""
    (folder / "compiled").mkdir()
    (folder / "own.py").touch()
    (folder / "broken.py").write_text("def")
    (folder / "open").mkdir()
    (folder / "open/__init__.py").write_text("__all__ = ['layers']")
    source = f"import os, torch\ndef main():\n    torch.optim.SGD\n{text}"

    choice = chosen(source, folder)

    assert "torch._dynamo" not in choice.names
    assert ("torch._dynamo", why) in choice.left_out


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
    """So it is left out where gloo is used, or may be: see docs/packages.md."""
    source = f"import torch\nimport torch.distributed as dist\ntorch.optim.SGD\n{text}"

    choice = chosen(source, folder, has_gpus=has_gpus)

    why = HANGS.format(hangs_after)
    assert choice.left_out == ([("torch._dynamo", why)] if hangs_after else [])


def test_gloo_on_the_command_line(folder: Path) -> None:
    """Though the text names NCCL alone."""
    source = "import torch\ntorch.optim.SGD; init(args.backend or 'nccl'); destroy_process_group()"

    by_gloo = chosen(source, folder, ("python", "script.py", "--backend=gloo"), has_gpus=True)
    by_nccl = chosen(source, folder, ("python", "script.py"), has_gpus=True)

    assert by_gloo.left_out == [("torch._dynamo", HANGS.format(DESTROY))]
    assert by_nccl.left_out == []


def test_a_folder_named_nccl_says_nothing(folder: Path) -> None:
    """Only the text can say that gloo is not used."""
    source = "import torch\ntorch.optim.SGD; dist.destroy_process_group()"

    choice = chosen(source, folder, ("python", "/home/me/nccl/script.py"), has_gpus=True)

    assert choice.left_out == [("torch._dynamo", HANGS.format(DESTROY))]


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0a0+git", "2", "by hand"])
def test_an_older_torch(folder: Path, version: str) -> None:
    """Or one whose version is not known."""
    set_version(folder, version)

    choice = chosen("import torch\ntorch.optim.SGD", folder)

    why = "before torch 2.10 its import makes a folder for one process"
    assert choice.left_out == [("torch._dynamo", why)]


@pytest.mark.parametrize("version", ["2.10.0", "2.13.0a0+git", "3.0"])
def test_a_newer_torch(folder: Path, version: str) -> None:
    set_version(folder, version)

    assert chosen("import torch\ntorch.optim.SGD", folder).names == ["torch", "torch._dynamo"]


def test_a_torch_without_it(folder: Path) -> None:
    """Nothing is said of what there is not."""
    (folder / "site-packages/torch/_dynamo/__init__.py").unlink()
    (folder / "site-packages/torch/_dynamo").rmdir()

    choice = chosen("import torch\ntorch.optim.SGD", folder)

    assert (choice.names, choice.left_out) == (["torch"], [])


def test_modules_of_the_user_are_read_wherever_they_are_imported(folder: Path) -> None:
    """Also in functions, and from packages."""
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
    before = chosen(source, folder)
    (folder / "mine/layers.py").write_text("import unknown_to_us")

    after = chosen(source, folder)

    assert before.names == ["torch", "torch._dynamo"]
    assert after.left_out == [("torch._dynamo", "unknown_to_us may be imported before it")]


def test_a_module_of_the_user_by_the_name_of_a_known_package(folder: Path) -> None:
    """Its text counts."""
    (folder / "datasets.py").write_text("import os; os.environ['TORCH_LOGS'] = '1'")

    choice = chosen("import torch, datasets\ntorch.optim.SGD", folder)

    assert choice.left_out[-1] == ("torch._dynamo", "TORCH_LOGS may be set before it")


def test_too_much_text(folder: Path) -> None:
    """To look through it would take longer than is won."""
    (folder / "mine.py").write_text("x = 1\n" * 100_000)

    choice = chosen("import torch\ntorch.optim.SGD\ndef f():\n    import mine", folder)

    assert choice.left_out == [("torch._dynamo", "the script has too much text to read")]


def test_a_module_that_is_too_long_is_not_read(folder: Path) -> None:
    """Python would take seconds to parse it."""
    (folder / "mine.py").write_text("x = [" + "1," * 10_000_000 + "]")
    start = time.monotonic()

    choice = chosen("import torch\ntorch.optim.SGD\ndef f():\n    import mine", folder)

    assert choice.left_out == [("torch._dynamo", "the script has too much text to read")]
    assert time.monotonic() - start < 1.0


def test_a_deep_expression(folder: Path) -> None:
    """Deeper than Python's own stack."""
    chain = "x" + ".f()" * 900

    assert chosen(f"import torch\ntorch.optim.SGD\ny = {chain}", folder).left_out == []


def test_a_folder_as_a_package(folder: Path) -> None:
    """Without a file of its own."""
    (folder / "src").mkdir()
    (folder / "src/models.py").write_text("import torch")
    source = (
        "import torch\ntorch.optim.SGD\ndef f():\n    from src import models\n    import src.models"
    )

    assert chosen(source, folder).names == ["torch", "torch._dynamo"]
    assert "torch._dynamo" not in chosen(f"{source}\n    from src import others", folder).names


@pytest.mark.parametrize("main", ["train", "__main__"])
def test_what_python_m_runs_is_read_too(folder: Path, main: str) -> None:
    """Though the leading imports end in its package."""
    package = folder / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("from .model import Net\n__version__ = version('mine')")
    (package / "model.py").write_text("import torch\ntorch.optim.SGD")
    (package / f"{main}.py").write_text("import os\nos.environ['TORCH_LOGS'] = '1'")
    reading = leading_imports.LeadingImports()
    reading.read_module("mine" if main == "__main__" else f"mine.{main}")
    choice = packages.choose("auto", reading, 2)

    add_followers(choice, reading, (), has_gpus=False)

    assert choice.names == ["torch"]
    assert choice.left_out[-1] == ("torch._dynamo", "TORCH_LOGS may be set before it")
