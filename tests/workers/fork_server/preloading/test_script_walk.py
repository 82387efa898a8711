"""What a script does before it imports torch is found by reading it; nothing is imported for that."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from clusterrun.workers import fork_server
from clusterrun.workers.fork_server.preloading import module_files, script_walk

from tests.workers.interpreters import oldest_python

SOURCES = Path(str(fork_server.__file__)).parents[1]


class Folder:
    """A script's folder, and one of installed modules."""

    def __init__(self, path: Path) -> None:
        """Install some packages, all without any text.

        ``numpy``, ``tqdm`` and ``yaml`` are on the list of those that may be imported before a fork,
        ``unlisted`` and ``needs_torch`` are on none.
        """
        self.path = path
        self.installed = path / "site-packages"
        for name in ("numpy.py", "tqdm.py", "yaml/__init__.py", "yaml/inner.py", "unlisted.py"):
            self.install(name)
        for name in ("torch/__init__.py", "torch/nn.py", "isaacgym.py", "needs_torch/__init__.py"):
            self.install(name)
        self.install(
            "needs_torch-1.0.dist-info/METADATA",
            "Name: needs_torch\nRequires-Dist: torch>=2.0\n",
        )

    def install(self, name: str, text: str = "") -> None:
        self.write(f"site-packages/{name}", text)

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))

    def read(self, script: str) -> script_walk.ScriptWalk:
        walk = script_walk.ScriptWalk()
        walk.read_script(dedent(script).encode(), str(self.path / "script.py"))
        return walk

    def read_module(self, name: str) -> script_walk.ScriptWalk:
        """Read what ``python -m`` runs."""
        walk = script_walk.ScriptWalk()
        walk.read_module(name)
        return walk


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """Return a folder whose modules are found; check afterwards that none was imported."""
    folder = Folder(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(folder.installed), *sys.path])
    before = set(sys.modules)

    yield folder

    assert not {name for name in set(sys.modules) - before if "encodings" not in name}


def names(walk: script_walk.ScriptWalk) -> list[str]:
    """Return the modules that may be imported before the first act, in order."""
    return [wanted.name for wanted in walk.found]


def test_imports_in_their_order(folder: Folder) -> None:
    """They are installed, come with Python, or are built in."""
    walk = folder.read(
        """
        from __future__ import annotations
        import sys, tqdm
        import numpy as short
        from yaml import inner, nothing
        import yaml.inner
        from json import *
        from torch.nn import Linear
        """
    )

    assert [(wanted.name, wanted.names) for wanted in walk.found] == [
        ("sys", ()),
        ("tqdm", ()),
        ("numpy", ()),
        ("yaml", ("inner", "nothing")),
        ("yaml.inner", ()),
        ("json", ("*",)),
        ("torch.nn", ("Linear",)),
    ]
    assert (walk.first_side_effect, walk.left_out, walk.imports_torch) == ("", [], False)


HARMLESS = {
    "docstring": '"""Trains."""',
    "ellipsis": "...",
    "pass": "pass",
    "number": "BATCH = 64",
    "negative_number": "SEED = -1",
    "computed_number": "SIZE = 64 * 1024 + 1",
    "texts": "NAMES = ['a', 'b']; MAPPING = {'a': (1, 2.5), 'b': {None, True}}",
    "several": "A = B = 1",
    "annotated": "RATE: float = 0.1",
    "annotated_only": "MODEL: object",
    "function": "def main(rate=0.1, *, steps=10): numpy.run(rate)",
    "coroutine": "async def main(): await numpy.run()",
    "class": "class Model:\n    'Doc.'\n    size = 3\n    def forward(self): return numpy.run()",
    "subclass": "class Model(numpy.nn.Module, metaclass=numpy.Meta, frozen=True): pass",
    "for_type_checkers": "if TYPE_CHECKING:\n    import unlisted",
    "for_type_checkers_of_typing": "if typing.TYPE_CHECKING:\n    import unlisted",
    "lazy_import": "def main():\n    import unlisted",
    "lambda": "run = lambda: numpy.run()",
    "template": "NAME = f'{numpy.name}'",
    "annotations": "def main(rate: numpy.Rate | None, n: list['x'] = 3) -> numpy.T['a b']: pass",
    "name": "nn = numpy.nn",
    "augmented": "SIZE = 1; SIZE += 1",
    "comprehension": "N = [x for x in numpy.all]",
    "unpacked": "A, B = numpy.pair",
    "condition": "if numpy.version: pass",
    "attempt": "try:\n    import nothing\nexcept ImportError:\n    nothing = None",
    "loop": "for n in (1, 2): SIZE = n",
    "block": "with numpy.quiet: pass",
    "checked": "assert numpy",
    "deleted": "SIZE = 1; del SIZE",
    "read_item": "HOME = os.environ['HOME']",
    "main_guard_of_a_constant": "if __name__ == '__main__':\n    SIZE = 3",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_statements_that_may_stand_between(folder: Folder, name: str) -> None:
    """They call nothing, and set nothing but names."""
    walk = folder.read(f"import numpy\n{HARMLESS[name]}\nimport tqdm")

    assert (names(walk), walk.first_side_effect, walk.left_out) == (["numpy", "tqdm"], "", [])


ACTS = {
    "call": "numpy.setup()",
    "assigned_call": "device = numpy.device()",
    "variable": "os.environ['NAME'] = '1'",
    "attribute": "numpy.flag = True",
    "annotated_attribute": "numpy.flag: bool = True",
    "item": "numpy.options['a'] = 1",
    "augmented_item": "numpy.options['a'] += 1",
    "deleted_item": "del numpy.options['a']",
    "deleted_attribute": "del numpy.flag",
    "unpacked_attribute": "A, numpy.flag = numpy.pair",
    "call_in_a_list": "SIZES = [len('a')]",
    "call_in_a_comprehension": "SIZES = [x for x in range(3)]",
    "call_in_a_template": "NAME = f'{numpy.name()}'",
    "call_in_a_condition": "if numpy.version(): pass",
    "call_in_an_attempt": "try:\n    pass\nfinally: numpy.setup()",
    "call_in_a_handler": "try: pass\nexcept numpy.errors(): pass",
    "call_in_a_loop": "for n in range(3): pass",
    "call_in_a_block": "with numpy.quiet(): pass",
    "call_in_a_case": "match 1:\n    case 1 if numpy.is_quiet(): pass",
    "walrus": "(n := numpy.run())",
    "decorated_class": "@dataclass\nclass Config:\n    rate: float = 0.1",
    "decorated_function": "@numpy.no_grad\ndef evaluate(): pass",
    "decorated_method": "class A:\n    @property\n    def a(self): pass",
    "called_decorator": "@numpy.record('a')\ndef main(): pass",
    "default_that_is_called": "def main(device=numpy.device()): pass",
    "keyword_default_that_is_called": "def main(*, device=numpy.device()): pass",
    "class_that_calls": "class Model:\n    size = numpy.size()",
    "base_that_is_called": "class Model(numpy.base()): pass",
    "keyword_that_is_called": "class Model(metaclass=numpy.meta()): pass",
    "annotation_that_is_called": "def main(rate: numpy.kind()): pass",
    "returned_annotation_that_is_called": "def main() -> numpy.kind(): pass",
    "annotated_variable_that_is_called": "RATE: numpy.kind() = 1",
    "type_checking_with_else": "if TYPE_CHECKING:\n    pass\nelse:\n    numpy.run()",
    "not_type_checking": "if not TYPE_CHECKING:\n    numpy.run()",
    "not_main": "if __name__ != '__main__':\n    numpy.run()",
    "modules_that_are_looked_at": "HAS_TORCH = 'torch' in sys.modules",
    "unlisted_package": "import unlisted",
    "unlisted_package_in_an_attempt": "try:\n    import unlisted\nexcept ImportError: pass",
    "package_that_must_come_first": "import isaacgym",
}


@pytest.mark.parametrize("name", ACTS)
def test_statements_that_end_what_is_imported_before_the_fork(folder: Folder, name: str) -> None:
    """They may do anything: the worker itself imports what follows them."""
    text = ACTS[name]
    walk = folder.read(f"import numpy\n{text}\nimport tqdm")

    marked = (
        *("finally: numpy", "except numpy.errors", "case 1 if", "def evaluate", "class Config"),
        *("def a(self)", "size = numpy", "    numpy.run()"),
    )
    lines = text.splitlines()
    # The line of a function is that of its name, and that of a call in a block its own.
    own = next((n for n, line in enumerate(lines) if any(each in line for each in marked)), 0)
    own += text.startswith("try:\n    import unlisted")
    assert (names(walk), walk.first_side_effect) == (["numpy"], f"script.py:{2 + own}")
    assert len(walk.left_out) == 1


def test_what_is_left_to_the_workers_after_an_act(folder: Folder) -> None:
    walk = folder.read("import numpy\nnumpy.run()\nif 1:\n    import tqdm\n")

    assert walk.left_out == [("what is imported from script.py:2 on", "that line may do anything")]


def test_no_imports_follow(folder: Folder) -> None:
    walk = folder.read("import numpy\nnumpy.run()\ndef main():\n    import tqdm\n")

    assert (walk.first_side_effect, walk.left_out) == ("script.py:2", [])


def test_an_unlisted_package_is_named(folder: Folder) -> None:
    walk = folder.read("import unlisted.part\nimport isaacgym\nimport tqdm")

    assert walk.first_side_effect == "script.py:1"
    assert walk.left_out == [
        (
            "unlisted and what is imported after it",
            "it is not on the list of packages that may be imported before a fork",
        )
    ]


def test_a_package_that_must_come_first_is_named(folder: Folder) -> None:
    walk = folder.read("import tqdm, isaacgym\nimport unlisted")

    assert walk.left_out == [
        ("isaacgym and what is imported after it", "it must be imported before torch")
    ]


def test_a_package_that_each_worker_imports_itself(folder: Folder) -> None:
    """What follows it, and what of the list it brings, is imported before the fork."""
    folder.install("lightning/__init__.py")
    folder.install("scipy/signal.py")
    folder.install("matplotlib/__init__.py")

    walk = folder.read("import lightning.pytorch as pl\nfrom lightning import Trainer\nimport tqdm")

    reason = "it reads RANK when it is imported"
    assert walk.left_out == [("lightning.pytorch", reason), ("lightning", reason)]
    assert names(walk)[:1] == ["torch"]
    assert names(walk)[-1:] == ["tqdm"]
    assert walk.first_side_effect == ""


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import nosuch", ["numpy", "tqdm"]),
        ("from nosuch import a", ["numpy", "tqdm"]),
        # Submodules of an installed package are not looked for.
        ("import yaml.nosuch.a", ["numpy", "yaml.nosuch.a", "tqdm"]),
        # It fails in the worker.
        ("from . import tqdm", ["numpy", "tqdm"]),
    ],
)
def test_what_is_not_there(folder: Folder, code: str, found: list[str]) -> None:
    """Python reports it in the worker, unless the script does without it."""
    assert names(folder.read(f"import numpy\n{code}\nimport tqdm")) == found


# Files beside the script, the script, what is found, and the first act.
OWN_MODULES: dict[str, tuple[dict[str, str], str, str, str]] = {
    "no_python": ({}, "import numpy\ndef broken(:", "", "script.py:1"),
    "read_but_not_imported": (
        {"own.py": "import tqdm\nSIZE = 1"},
        "import numpy\nimport own\nimport yaml",
        "numpy tqdm yaml",
        "",
    ),
    "name_in_a_module": (
        {"own.py": "import tqdm\nSIZE = 1"},
        "from own import SIZE\nimport yaml",
        "tqdm yaml",
        "",
    ),
    "import_of_each_other": (
        {"one.py": "import two\nimport numpy", "two.py": "import one\nimport tqdm"},
        "import one\nimport two",
        "tqdm numpy",
        "",
    ),
    "relative_import_beyond_the_package": (
        {"own/__init__.py": "from ... import numpy"},
        "import own\nimport tqdm",
        "tqdm",
        "",
    ),
    "folder_without_init": (
        {"loose/own.py": "import numpy"},
        "import loose.own\nimport tqdm",
        "numpy tqdm",
        "",
    ),
    "shadows_an_installed_module": (
        {"numpy.py": "import tqdm", "json.py": "import yaml"},
        "import numpy\nimport json",
        "tqdm yaml",
        "",
    ),
    "extension": (
        {"own.abi3.so": ""},
        "import numpy\nimport own\nimport tqdm",
        "numpy",
        "own.abi3.so:1",
    ),
    "broken": (
        {"own.py": "def broken(:"},
        "import numpy\nimport own\nimport tqdm",
        "numpy",
        "own.py:1",
    ),
    "main_guard": (
        {"own.py": "import tqdm\nif __name__ == '__main__':\n    own()\nelse:\n    import yaml"},
        "import own\nimport numpy",
        "tqdm yaml numpy",
        "",
    ),
}


@pytest.mark.parametrize("name", OWN_MODULES)
def test_the_users_own_modules(folder: Folder, name: str) -> None:
    """They are read by the same rule as the script, and run in the workers only."""
    files, script, found, first_side_effect = OWN_MODULES[name]
    for file, text in files.items():
        folder.write(file, text)

    walk = folder.read(script)

    assert (names(walk), walk.first_side_effect) == (found.split(), first_side_effect)


@pytest.mark.parametrize("own", ["", "\n" * 50])
def test_the_users_own_module_does_something(folder: Folder, own: str) -> None:
    """Later imports of the script are left to the worker."""
    folder.write("own.py", f"import tqdm{own}\ntqdm.setup()\n")

    walk = folder.read("import numpy\nimport own\nimport json\n")

    line = f"own.py:{2 + len(own)}"
    assert (names(walk), walk.first_side_effect) == (["numpy", "tqdm"], line)
    assert walk.left_out == [(f"what is imported from {line} on", "that line may do anything")]


def test_the_users_own_package(folder: Folder) -> None:
    """Each package on the way is read, and modules that are asked for by name."""
    folder.write("own/__init__.py", "import numpy\n")
    folder.write("own/deep/__init__.py", "from . import beside\n")
    folder.write("own/deep/beside.py", "import tqdm\nfrom ..above import A\n")
    folder.write("own/deep/model.py", "from .beside import B\nimport yaml.inner\n")
    folder.write("own/above.py", "import json\n")

    walk = folder.read("from own.deep import model\nimport decimal\n")

    assert names(walk) == ["numpy", "tqdm", "json", "yaml.inner", "decimal"]


def test_a_module_that_is_run(folder: Folder) -> None:
    """``-m`` imports its package first; it is no script, and relative imports work."""
    folder.write("own/__init__.py", "import numpy\n")
    folder.write("own/train.py", "from .model import A\nimport yaml\n")
    folder.write("own/model.py", "import tqdm\n")

    walk = folder.read_module("own.train")

    assert names(walk) == ["numpy", "tqdm", "yaml"]
    assert walk.main == str(folder.path / "own/train.py")


def test_a_package_that_is_run(folder: Folder) -> None:
    folder.write("own/__init__.py", "import numpy\n")
    folder.write("own/__main__.py", "from . import model\nimport yaml\n")
    folder.write("own/model.py", "import tqdm\n")

    walk = folder.read_module("own")

    assert names(walk) == ["numpy", "tqdm", "yaml"]
    assert walk.main == str(folder.path / "own/__main__.py")


def test_an_installed_module_that_is_run(folder: Folder) -> None:
    """It is read as the user's own."""
    folder.install("trainer/__init__.py", "import numpy\n")
    folder.install("trainer/__main__.py", "from .model import A\nimport tqdm\nA()\nimport torch")
    folder.install("trainer/model.py", "import yaml\n")

    walk = folder.read_module("trainer")

    assert (names(walk), walk.first_side_effect) == (["numpy", "yaml", "tqdm"], "__main__.py:3")
    assert walk.imports_torch


def test_a_module_that_is_run_and_not_there(folder: Folder) -> None:
    walk = folder.read_module("nosuch.train")

    assert (names(walk), walk.main, walk.imports_only_stdlib) == ([], "", False)


@pytest.mark.usefixtures("folder")
def test_an_encoding() -> None:
    walk = script_walk.ScriptWalk()

    walk.read_script("# coding: latin-1\nNAME = '\xe4'\nimport tqdm\n".encode("latin-1"), "x.py")

    assert names(walk) == ["tqdm"]


ONLY_PYTHON = {
    "nothing": ("", True),
    "of_python": ("import json, os.path\nfrom collections import abc", True),
    "in_a_function": ("def main():\n    import numpy", False),
    "in_a_condition": ("if 1:\n    pass\nelse:\n    import numpy", False),
    "in_an_attempt": ("try:\n    pass\nexcept Exception:\n    import numpy", False),
    "of_the_user": ("import own", False),
    "of_its_package": ("from . import own", False),
    "no_python": ("def broken(:", False),
}


@pytest.mark.parametrize("name", ONLY_PYTHON)
def test_whether_a_script_needs_only_python(folder: Folder, name: str) -> None:
    """Every import counts, wherever it is."""
    script, expected = ONLY_PYTHON[name]
    folder.write("own.py", "")

    assert folder.read(script).imports_only_stdlib == expected


# Files beside the script, and the script, which does something before it imports torch.
TORCH_IS_IMPORTED: dict[str, tuple[dict[str, str], str]] = {
    "after_the_arguments": (
        {},
        "import argparse\nparser = argparse.ArgumentParser()\nparser.parse_args()\nimport torch",
    ),
    "a_part_of_it": ({}, "print()\nfrom torch.nn import Linear"),
    "in_the_main_guard": ({}, "if __name__ == '__main__':\n    print()\n    import torch"),
    "in_a_function_of_the_main_guard": (
        {},
        "def main():\n    import torch\nif __name__ == '__main__':\n    main()",
    ),
    "in_a_function_of_a_function": (
        {},
        "def main():\n    train(1)\ndef train(a):\n    import torch\nexit(main())",
    ),
    "in_a_coroutine": ({}, "async def main():\n    import torch\nasyncio.run(main())"),
    "in_a_decorated_function": (
        {},
        "import hydra\n@hydra.main()\ndef main(cfg):\n    import torch\nmain()",
    ),
    "when_an_object_is_made": (
        {},
        "class Trainer:\n    def __init__(self):\n        import torch\nTrainer()",
    ),
    "in_a_method": (
        {},
        "class Trainer:\n    def fit(self):\n        import torch\nTrainer().fit()",
    ),
    "in_a_method_of_a_variable": (
        {},
        "class Trainer:\n    def fit(self):\n        import torch\nt = Trainer()\nt.fit()",
    ),
    "in_a_method_of_the_own_object": (
        {},
        """
        class Trainer:
            def __init__(self):
                self.set_up()
            def set_up(self):
                import torch
        Trainer()
        """,
    ),
    "in_a_branch": ({}, "if print():\n    import torch\nelse:\n    pass"),
    "in_the_other_branch": ({}, "if print():\n    pass\nelse:\n    import torch"),
    "in_an_attempt": ({}, "print()\ntry:\n    import torch\nexcept ImportError:\n    pass"),
    "in_a_handler": ({}, "print()\ntry:\n    import x\nexcept ImportError:\n    import torch"),
    "at_last": ({}, "print()\ntry:\n    pass\nfinally:\n    import torch"),
    "in_a_loop": ({}, "for n in range(3):\n    import torch"),
    "in_a_block": ({}, "with open('x') as f:\n    import torch"),
    "in_a_class": ({}, "print()\nclass Model:\n    import torch"),
    "in_a_case": ({}, "match print():\n    case 1:\n        import torch"),
    "in_an_own_module": ({"own.py": "import torch"}, "print()\nimport own"),
    "in_a_function_of_an_own_module": (
        {"own.py": "def run():\n    import torch"},
        "import own\nown.run()",
    ),
    "in_an_imported_function": (
        {"own.py": "def run():\n    import torch"},
        "from own import run\nrun()",
    ),
    "in_an_own_module_of_a_function": (
        {"own/models.py": "import torch"},
        "def main():\n    from own import models\nmain()",
    ),
    "in_a_folder_without_init": ({"own/net.py": "import torch"}, "print()\nfrom own.net import N"),
    "in_an_own_package": (
        {"own/__init__.py": "from .net import Net", "own/net.py": "import torch"},
        "print()\nimport own",
    ),
    "in_a_package_that_is_installed": ({}, "print()\nimport needs_torch"),
    "in_an_unlisted_package_that_is_installed": ({}, "import needs_torch.part"),
    "after_an_unlisted_package": ({}, "import unlisted\nimport torch"),
    "after_an_own_module_that_is_no_text": ({"own.so": ""}, "import own\nimport torch"),
}


@pytest.mark.parametrize("name", TORCH_IS_IMPORTED)
def test_torch_is_imported_after_an_act(folder: Folder, name: str) -> None:
    files, script = TORCH_IS_IMPORTED[name]
    for file, text in files.items():
        folder.write(file, text)

    walk = folder.read(script)

    assert (walk.imports_torch, walk.obstacle, walk.sets) == (True, "", [])
    assert "torch" not in names(walk)


MAY_IMPORT_TORCH: dict[str, tuple[dict[str, str], str]] = {
    "in_the_main_guard_of_an_imported_module": (
        {"own.py": "if __name__ == '__main__':\n    import torch"},
        "print()\nimport own",
    ),
    "in_a_function_that_another_calls": ({}, "def main():\n    import torch\nfire.Fire(main)"),
    "in_a_decorated_function": ({}, "@app.command\ndef main():\n    import torch\napp()"),
    "in_an_own_module_of_a_function": (
        {"own.py": "import needs_torch"},
        "def main():\n    import own\nfire.Fire(main)",
    ),
    "in_a_method_of_an_object_that_another_makes": (
        {},
        "print()\nclass Trainer:\n    def __init__(self):\n        import torch",
    ),
    "a_function_of_the_same_name": ({}, "import numpy\ndef run():\n    import torch\nnumpy.run()"),
    "in_a_lambda": ({}, "def run():\n    import torch\nlater(lambda: run())"),
}
"""Nothing shows that it is imported, but its import is there."""


@pytest.mark.parametrize("name", MAY_IMPORT_TORCH)
def test_torch_may_be_imported(folder: Folder, name: str) -> None:
    files, script = MAY_IMPORT_TORCH[name]
    for file, text in files.items():
        folder.write(file, text)

    walk = folder.read(script)

    assert (walk.imports_torch, walk.obstacle) == (True, "")


TORCH_IS_NOT_IMPORTED: dict[str, tuple[dict[str, str], str]] = {
    "for_type_checkers": ({}, "print()\nif TYPE_CHECKING:\n    import torch"),
    "an_own_module_of_its_name": ({"torch.py": ""}, "print()\nimport torch"),
    "for_type_checkers_of_an_own_module": (
        {
            "own.py": "def f():\n    if TYPE_CHECKING:\n        import torch\n    else:\n        import numpy"
        },
        "print()\nimport own",
    ),
}


@pytest.mark.parametrize("name", TORCH_IS_NOT_IMPORTED)
def test_torch_is_not_imported(folder: Folder, name: str) -> None:
    files, script = TORCH_IS_NOT_IMPORTED[name]
    for file, text in files.items():
        folder.write(file, text)

    walk = folder.read(script)

    assert (walk.first_side_effect != "", walk.imports_torch, walk.obstacle) == (True, False, "")


def test_torch_that_is_not_installed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(folder.path)])

    assert not folder.read("print()\nimport torch").imports_torch


@pytest.mark.parametrize(
    "script",
    [
        "import torch\nos.environ['OMP_NUM_THREADS'] = str(3)\nfrom torch import nn",
        "import torch\nimport isaacgym\nfrom torch import nn",
        "import torch\nsys.stdout = x\nimport needs_torch",
        # accelerate has imported it.
        "import accelerate\nos.environ['OMP_NUM_THREADS'] = str(3)\nimport torch",
    ],
)
def test_torch_is_imported_again(folder: Folder, script: str) -> None:
    """It is imported before the first act: what follows does not matter."""
    folder.install("accelerate/__init__.py")
    folder.install("accelerate-1.0.dist-info/METADATA", "Requires-Dist: torch (>=2.0.0)\n")

    assert not folder.read(script).imports_torch


@pytest.mark.parametrize(("main", "module"), [("train", "own.train"), ("__main__", "own")])
def test_torch_in_a_module_that_is_run(folder: Folder, main: str, module: str) -> None:
    """Its main guard is that of a script."""
    folder.write("own/__init__.py", "from .model import Net\n__version__ = version('own')")
    folder.write("own/model.py", "class Net: pass\nif __name__ == '__main__':\n    import torch")
    folder.write(
        f"own/{main}.py", "from .data import D\nif __name__ == '__main__':\n    import torch"
    )
    folder.write("own/data.py", "import os\nos.environ['OMP_NUM_THREADS'] = '2'")

    walk = folder.read_module(module)

    assert (walk.first_side_effect, walk.imports_torch) == ("__init__.py:2", True)
    assert walk.sets == [("OMP_NUM_THREADS", "2", False)]


VARIABLE = "script.py:1 sets OMP_NUM_THREADS"

# Statements, and what one of them does, with its file and line: "" in the line of "import torch".
OBSTACLES: dict[str, tuple[str, str]] = {
    "dict_config": ("logging.config.dictConfig({})", "script.py:1 sets up logging (dictConfig)"),
    "file_config": ("fileConfig('x.ini')", "script.py:1 sets up logging (fileConfig)"),
    "logger_class": ("logging.setLoggerClass(X)", "script.py:1 sets up logging (setLoggerClass)"),
    "affinity": ("os.sched_setaffinity(0, {1})", "script.py:1 chooses CPUs (sched_setaffinity)"),
    "affinity_by_psutil": (
        "psutil.Process().cpu_affinity([1])",
        "script.py:1 chooses CPUs (cpu_affinity)",
    ),
    "library": ("ctypes.CDLL('libx.so')", "script.py:1 loads libraries (CDLL)"),
    "library_by_a_loader": (
        "ctypes.cdll.LoadLibrary('x')",
        "script.py:1 loads libraries (LoadLibrary)",
    ),
    "flags_of_libraries": (
        "sys.setdlopenflags(3)",
        "script.py:1 loads libraries (setdlopenflags)",
    ),
    "putenv": ("os.putenv('A', 'b')", "script.py:1 sets a variable (putenv)"),
    "unsetenv": ("os.unsetenv('A')", "script.py:1 sets a variable (unsetenv)"),
    "stdout": ("sys.stdout = Tee()", "script.py:1 replaces sys.stdout"),
    "stderr": ("a, sys.stderr = pair", "script.py:1 replaces sys.stderr"),
    "value_that_is_computed": ("os.environ['OMP_NUM_THREADS'] = str(n)", VARIABLE),
    "value_that_is_empty": ("os.environ['OMP_NUM_THREADS'] = ''", VARIABLE),
    "default_that_is_computed": ("os.environ.setdefault('OMP_NUM_THREADS', n)", VARIABLE),
    "dictionary_with_a_computed_value": ("os.environ.update({'OMP_NUM_THREADS': n})", VARIABLE),
    "keyword_with_a_computed_value": ("environ.update(OMP_NUM_THREADS=n)", VARIABLE),
    "set_by_a_method": ("os.environ.__setitem__('OMP_NUM_THREADS', '1')", VARIABLE),
    "popped": ("os.environ.pop('OMP_NUM_THREADS', None)", VARIABLE),
    "deleted": ("del os.environ['OMP_NUM_THREADS']", VARIABLE),
    "deleted_by_a_method": ("os.environ.__delitem__('OMP_NUM_THREADS')", VARIABLE),
    "made_longer": ("os.environ['OMP_NUM_THREADS'] += '1'", VARIABLE),
    "in_bytes": ("os.environb[b'OMP_NUM_THREADS'] = n", VARIABLE),
    "constant_in_a_condition": (
        "if a:\n    os.environ['MKL_NUM_THREADS'] = '1'",
        "script.py:2 sets MKL_NUM_THREADS",
    ),
    "constant_in_a_handler": (
        "try:\n    pass\nexcept OSError:\n    os.environ['TORCH_LOGS'] = '1'",
        "script.py:4 sets TORCH_LOGS",
    ),
    "constant_in_a_loop": (
        "for n in 1, 2:\n    os.environ['KMP_BLOCKTIME'] = '1'",
        "script.py:2 sets KMP_BLOCKTIME",
    ),
    "constant_in_a_function": (
        "def f():\n    os.environ['OPENBLAS_NUM_THREADS'] = '1'\nf()",
        "script.py:2 sets OPENBLAS_NUM_THREADS",
    ),
    "in_an_argument": ("print(os.putenv('A', 'b'))", "script.py:1 sets a variable (putenv)"),
    "in_an_own_module": ("import own", "own.py:2 sets PYTORCH_JIT"),
    "in_a_called_function_of_an_own_module": (
        "import lazy\nlazy.set_up()",
        "lazy.py:2 replaces sys.stdout",
    ),
    "package_that_must_come_first": (
        "import isaacgym",
        "script.py:1 imports isaacgym (it must be imported before torch)",
    ),
    "package_that_patches": (
        "import os\nprint()\nfrom comet_ml import Experiment",
        "script.py:3 imports comet_ml (it changes packages that are imported after it)",
    ),
    "package_that_connects": (
        "from mpi4py import MPI",
        "script.py:1 imports mpi4py (it connects to the outside when it is imported)",
    ),
    "first_of_several": ("print()\nos.putenv('A', 'b')\nsys.stdout = x", "script.py:2 sets a variable (putenv)"),
}  # fmt: skip


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_must_not_come_after_torch(folder: Folder, name: str) -> None:
    """The reason names the line."""
    statements, obstacle = OBSTACLES[name]
    for package in ("comet_ml", "mpi4py", "psutil"):
        folder.install(f"{package}.py")
    folder.write("own.py", "import os\nos.environ['PYTORCH_JIT'] = chosen()")
    folder.write("lazy.py", "def set_up():\n    sys.stdout = 1\n")

    walk = folder.read(f"{statements}\nimport torch")

    assert (walk.imports_torch, walk.sets) == (True, [])
    assert walk.obstacle == f"{obstacle} before torch is imported"


NO_OBSTACLES = {
    "seeds": "random.seed(1); numpy.random.seed(1)",
    "logging": "logging.basicConfig(level=10); log = logging.getLogger(__name__)",
    "logger": "log.addHandler(logging.StreamHandler(sys.stdout)); log.setLevel(10)",
    "arguments": "parser = argparse.ArgumentParser(); parser.add_argument('--a'); parser.parse_args()",
    "search_path": "sys.path.append('/mine'); sys.path.insert(0, '/mine')",
    "folder": "os.chdir('/'); os.makedirs('out', exist_ok=True)",
    "signals": "signal.signal(signal.SIGTERM, handle)",
    "start_method": "multiprocessing.set_start_method('spawn')",
    "filters": "warnings.filterwarnings('ignore'); warnings.simplefilter('ignore')",
    "gpus": "os.environ['CUDA_VISIBLE_DEVICES'] = str(rank)",
    "nccl": "os.environ['NCCL_DEBUG'] = level; os.environ['TORCH_NCCL_BLOCKING_WAIT'] = '1'",
    "hugging_face": "os.environ['HF_HOME'] = home; os.environ.update(HF_HUB_OFFLINE='1')",
    "wandb": "os.environ['WANDB_MODE'] = os.environ.get('MODE', 'offline')",
    "tokenizers": "os.environ['TOKENIZERS_PARALLELISM'] = 'false'",
    "allocator": "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'",
    "other_variables": "os.environ.setdefault('MASTER_PORT', port); os.environ.pop('MINE', None)",
    "any_variable": "os.environ[name] = value; os.environ.update(found)",
    "variables_that_are_read": "n = os.environ.get('OMP_NUM_THREADS'); os.environ['OMP_NUM_THREADS']",
    "streams_that_are_used": "sys.stdout.write('x'); sys.stdout.reconfigure(line_buffering=True)",
    "an_attribute_of_another_name": "args.stdout = f()",
    "in_a_function_that_is_not_called": "print()\ndef f():\n    os.putenv('A', 'b')",
    "in_the_main_guard_of_another": "print()\nimport own",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_OBSTACLES)
def test_what_may_come_after_torch(folder: Folder, name: str) -> None:
    folder.write("own.py", "if __name__ == '__main__':\n    os.putenv('A', 'b')")

    walk = folder.read(f"{NO_OBSTACLES[name]}\nimport torch")

    assert (walk.first_side_effect != "", walk.imports_torch) == (True, True)
    assert (walk.obstacle, walk.sets) == ("", [])


def test_what_comes_after_torch(folder: Folder) -> None:
    walk = folder.read(
        """
        print()
        def main():
            import torch
            os.environ["OMP_NUM_THREADS"] = str(3)
        main()
        sys.stdout = None
        """
    )

    assert (walk.imports_torch, walk.obstacle) == (True, "")


CONSTANTS = {
    "in_an_attempt": (
        "try:\n    os.environ['TORCH_LOGS'] = '1'\nfinally:\n    pass",
        [("TORCH_LOGS", "1", False)],
    ),
    "item": ("os.environ['OMP_NUM_THREADS'] = '1'", [("OMP_NUM_THREADS", "1", False)]),
    "item_of_environ": ("environ['OMP_NUM_THREADS'] = '1'", [("OMP_NUM_THREADS", "1", False)]),
    "item_in_bytes": ("os.environb[b'MKL_NUM_THREADS'] = b'1'", [("MKL_NUM_THREADS", "1", False)]),
    "several_at_once": (
        "os.environ['OMP_NUM_THREADS'] = os.environ['MKL_NUM_THREADS'] = '2'",
        [("OMP_NUM_THREADS", "2", False), ("MKL_NUM_THREADS", "2", False)],
    ),
    "default": ("os.environ.setdefault('TORCH_LOGS', '+dynamo')", [("TORCH_LOGS", "+dynamo", True)]),
    "dictionary": (
        "os.environ.update({'KMP_BLOCKTIME': '0', 'MINE': x, 'OMP_PLACES': 'cores'})",
        [("KMP_BLOCKTIME", "0", False), ("OMP_PLACES", "cores", False)],
    ),
    "keywords": ("os.environ.update(KMP_BLOCKTIME='0', MINE=x)", [("KMP_BLOCKTIME", "0", False)]),
    "in_the_main_guard": (
        "if __name__ == '__main__':\n    os.environ['OMP_NUM_THREADS'] = '1'",
        [("OMP_NUM_THREADS", "1", False)],
    ),
    "in_a_block": (
        "with open('x'):\n    os.environ['OMP_NUM_THREADS'] = '1'",
        [("OMP_NUM_THREADS", "1", False)],
    ),
    "in_an_own_module": ("import own", [("PYTORCH_JIT", "0", False)]),
    "in_their_order": (
        "os.environ['TORCH_LOGS'] = 'a'; os.environ['TORCH_LOGS'] = 'b'",
        [("TORCH_LOGS", "a", False), ("TORCH_LOGS", "b", False)],
    ),
}  # fmt: skip


MAY_NOT_RUN = {
    "branch": ("if numpy.FLAG:\n    import pandas", ["numpy", "json"]),
    "other_branch": ("if numpy.FLAG:\n    pass\nelse:\n    import pandas", ["numpy", "json"]),
    "handler": ("try:\n    pass\nexcept OSError:\n    import pandas", ["numpy", "json"]),
    "attempt": ("try:\n    import pandas\nexcept OSError:\n    pass", ["numpy", "pandas", "json"]),
    "block": ("with numpy.FLAG:\n    import pandas", ["numpy", "pandas", "json"]),
}


@pytest.mark.parametrize("name", MAY_NOT_RUN)
def test_imports_that_may_not_run(folder: Folder, name: str) -> None:
    """They are left to the workers: a module would be there that the script has not imported."""
    folder.install("pandas.py")
    statements, found = MAY_NOT_RUN[name]

    walk = folder.read(f"import numpy\n{statements}\nimport json")

    assert ([each.name for each in walk.found], walk.first_side_effect) == (found, "")


def test_torch_may_not_be_imported(folder: Folder) -> None:
    """Then each worker checks it, though nothing happens before."""
    walk = folder.read("import numpy\nif numpy.FLAG:\n    import torch")

    assert [each.name for each in walk.found] == ["numpy"]
    assert walk.imports_torch


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_that_are_carried_out(folder: Folder, name: str) -> None:
    """Variables that torch reads are set for its import, too."""
    statements, sets = CONSTANTS[name]
    folder.write("own.py", "import os\nos.environ['PYTORCH_JIT'] = '0'")

    walk = folder.read(f"{statements}\nimport torch\nos.environ['TORCH_LOGS'] = 'later'")

    assert (walk.imports_torch, walk.obstacle, walk.sets) == (True, "", sets)


@pytest.mark.parametrize(
    ("script", "slow"),
    [
        ("print()\nimport tqdm, numpy\nimport numba", ["numpy", "numba"]),
        ("import tqdm\ntqdm.run()\nimport yaml", []),
        ("import numpy\nnumpy.run()", []),
        ("import unlisted\nimport numpy", ["numpy"]),
        # What follows torch is not walked to.
        ("print()\nimport torch\nimport numpy", []),
    ],
)
def test_slow_packages_after_an_act(folder: Folder, script: str, slow: list[str]) -> None:
    """Each worker imports them itself."""
    folder.install("numba/__init__.py")

    assert folder.read(script).slow_after_side_effect == slow


class TestLimits:
    """Texts of any size, and that call or import each other."""

    def test_time(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is read when it is over counts, and is followed as far as it goes."""
        folder.write("own.py", "import tqdm")
        folder.write("later.py", "import tqdm")
        seconds = iter((0.0, 0.1, 3.0, 3.0))
        monkeypatch.setattr(script_walk, "time", SimpleNamespace(process_time=seconds.__next__))

        walk = folder.read("import numpy\nimport own\nimport later\nimport torch")

        assert walk.unread == "to read all of it takes more than 2 s"
        assert (names(walk), walk.first_side_effect, walk.imports_torch) == (
            ["numpy"],
            "own.py:1",
            True,
        )
        assert not walk.imports_only_stdlib

    def test_functions_that_call_each_other(self, folder: Folder) -> None:
        walk = folder.read("def a():\n    b()\ndef b():\n    a()\n    import torch\na()")

        assert walk.imports_torch

    def test_calls_that_are_deep(self, folder: Folder) -> None:
        """Beyond some depth they are not followed."""
        calls = "\n".join(f"def f{n}():\n    f{n + 1}()" for n in range(500))

        text = f"{calls}\ndef f500():\n    os.environ['OMP_NUM_THREADS'] = str(3)\nf0()\n"

        assert folder.read(f"{text}f490()\nimport torch").obstacle
        assert not folder.read(f"{text}import torch").obstacle

    def test_an_expression_that_is_deep(self, folder: Folder) -> None:
        """Deeper than Python's own stack."""
        walk = folder.read(f"x = y{'.f()' * 900}\nimport torch")

        assert (walk.first_side_effect, walk.imports_torch) == ("script.py:1", True)

    def test_blocks_that_are_deep(self, folder: Folder) -> None:
        """Up to Python's own limit; those that may not run set no constants."""
        lines = [" " * n + "if x:" for n in range(90)]
        lines += [" " * 90 + "f()", " " * 90 + "import torch"]

        assert folder.read("\n".join(lines)).imports_torch

    def test_conditions_that_are_too_many(self, folder: Folder) -> None:
        """Each ``elif`` is one in the other."""
        script = "if a: pass\n" + "elif b: pass\n" * 800 + "import torch"

        walk = folder.read(f"import numpy\n{script}")

        assert (names(walk), walk.unread) == (["numpy"], "script.py is nested too deeply")

    def test_modules_that_import_each_other(self, folder: Folder) -> None:
        for n in range(500):
            folder.write(f"own{n}.py", f"import own{n + 1}")
        folder.write("own500.py", "import own0\nimport torch")

        walk = folder.read("import own0\nimport numpy")
        walk.read_rest()

        assert "torch" not in names(walk)
        assert len(walk.texts) == 502

    def test_a_few_modules_that_import_each_other(self, folder: Folder) -> None:
        for n in range(50):
            folder.write(f"own{n}.py", f"import own{n + 1}")
        folder.write("own50.py", "import own0\nprint()\nimport torch")

        assert folder.read("import own0").imports_torch


def test_the_rest_is_read_for_the_follower(folder: Folder) -> None:
    """Also what functions import, and own modules of these."""
    folder.write("own/__init__.py", "from . import models")
    folder.write("own/models.py", "def f():\n    from .layers import x")
    folder.write("own/layers.py", "import broken")
    folder.write("broken.py", "def")

    walk = folder.read("import torch\ndef main():\n    from own import models")
    before = [Path(text.path).name for text in walk.texts]
    walk.read_rest()

    after = [Path(text.path).name for text in walk.texts]
    assert before == ["script.py"]
    assert after == ["script.py", "__init__.py", "models.py", "layers.py"]
    assert walk.unread == "broken.py can't be read"


AS_SEEN = """
import sys
package = type(sys)("fork_server")
package.__path__ = [{folder!r}]
sys.modules["fork_server"] = package
sys.path[:0] = {path!r}
from fork_server.preloading.script_walk import ScriptWalk
walk = ScriptWalk()
walk.read_script({script!r}, "script.py")
walk.read_rest()
print(repr([each.name for each in walk.found]), walk.first_side_effect, walk.sets, walk.obstacle, sep="|")
"""


def test_the_oldest_python_reads_the_same(folder: Folder) -> None:
    """Its syntax trees differ: an index has a node around it."""
    python = oldest_python()
    if python is None:
        pytest.skip("no such Python here")
    script = dedent(
        """
        import os, numpy
        os.environ["OMP_NUM_THREADS"] = "1"
        try:
            del os.environ["MKL_NUM_THREADS"]
        except KeyError:
            pass
        def main(*, a: int = 1) -> None:
            import torch
        main()
        """
    )
    path = [str(folder.path), str(folder.installed)]
    code = AS_SEEN.format(folder=str(SOURCES / "fork_server"), path=path, script=script.encode())

    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )

    assert done.stdout.strip().split("|") == [
        "['os', 'numpy']",
        "script.py:3",
        "[('OMP_NUM_THREADS', '1', False)]",
        "script.py:5 sets MKL_NUM_THREADS before torch is imported",
    ]


def test_what_is_installed() -> None:
    library = str(Path(sys.modules["os"].__file__ or "").parent)

    assert module_files.is_installed("/home/me/.local/lib/python3.11/site-packages/torch")
    assert module_files.is_installed("/usr/lib/python3/dist-packages")
    assert module_files.is_installed(library + "/json")
    assert not module_files.is_installed("/home/me/project")
    assert not module_files.is_installed("/home/me/site-packages-of-mine")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "expected"),
    [("sys", True), ("json", True), ("pytest", False), ("nosuch", False), ("numpy", False)],
)
def test_what_comes_with_python(name: str, *, expected: bool) -> None:
    assert module_files.is_stdlib(name) is expected


REQUIREMENTS = {
    "torch": True,
    "torch>=2.0": True,
    "torch (>=1.10)": True,
    "torch ; python_version > '3.8'": True,
    "torch[all]": True,
    "torchvision": False,
    "torch-geometric": False,
    "torch_scatter": False,
    "torch ; extra == 'torch'": False,
    "numpy": False,
}


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_what_a_package_requires(folder: Folder, requirement: str) -> None:
    """It says so itself; what it needs for an extra does not count."""
    folder.install("some/__init__.py")
    folder.install("some-2.1.dist-info/METADATA", f"Name: some\nRequires-Dist: {requirement}\n")

    assert module_files.requires("some", "torch") is REQUIREMENTS[requirement]
    assert not module_files.requires("yaml", "torch")
    assert not module_files.requires("nosuch", "torch")


def test_a_package_requires_torch_by_another(folder: Folder) -> None:
    """Trl needs accelerate, which needs torch."""
    for name, needed in {
        "upper": "lower-one[fast]>=1; python_version > '3'",
        "lower_one": "torch",
    }.items():
        folder.install(f"{name}.py")
        text = f"Name: {name}\nRequires-Dist: {needed}\n"
        folder.write(f"site-packages/{name}-1.0.dist-info/METADATA", text)

    assert module_files.requires("upper", "torch")


def test_a_folder_in_a_folder_without_init(folder: Folder) -> None:
    """Its modules are found, though Python's own finder wants the folder around it imported."""
    folder.write("loose/deeper/own.py", "import sys\nsys.stdout = None\nimport torch")

    walk = folder.read("from loose.deeper.own import a")

    assert walk.obstacle == "own.py:2 replaces sys.stdout before torch is imported"
