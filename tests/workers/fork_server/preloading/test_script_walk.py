"""ScriptWalk finds what a script does before it imports torch, without importing anything."""

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
        """Install some empty packages.

        ``numpy``, ``tqdm`` and ``yaml`` are listed as fork-safe; ``unlisted`` and ``needs_torch`` are not listed.
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
    """Return a folder on sys.path; check afterwards that no module was imported."""
    folder = Folder(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(folder.installed), *sys.path])
    before = set(sys.modules)

    yield folder

    assert not {name for name in set(sys.modules) - before if "encodings" not in name}


def names(walk: script_walk.ScriptWalk) -> list[str]:
    """Return the preloadable modules, in order."""
    return [wanted.name for wanted in walk.preloadable]


def test_leading_imports_are_found_in_order(folder: Folder) -> None:
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

    assert [(wanted.name, wanted.names) for wanted in walk.preloadable] == [
        ("sys", ()),
        ("tqdm", ()),
        ("numpy", ()),
        ("yaml", ("inner", "nothing")),
        ("yaml.inner", ()),
        ("json", ("*",)),
        ("torch.nn", ("Linear",)),
    ]
    assert (walk.first_side_effect, walk.left_to_workers, walk.imports_torch) == (None, [], False)


NO_SIDE_EFFECTS = {
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


@pytest.mark.parametrize("name", NO_SIDE_EFFECTS)
def test_statement_without_side_effect(folder: Folder, name: str) -> None:
    """It calls nothing, and sets nothing but names."""
    walk = folder.read(f"import numpy\n{NO_SIDE_EFFECTS[name]}\nimport tqdm")

    assert (names(walk), walk.first_side_effect, walk.left_to_workers) == (
        ["numpy", "tqdm"],
        None,
        [],
    )


SIDE_EFFECTS = {
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
    "sys_modules_read": "HAS_TORCH = 'torch' in sys.modules",
    "unlisted_package": "import unlisted",
    "unlisted_package_in_an_attempt": "try:\n    import unlisted\nexcept ImportError: pass",
    "package_that_must_come_first": "import isaacgym",
}


@pytest.mark.parametrize("name", SIDE_EFFECTS)
def test_statement_with_side_effect_ends_preloading(folder: Folder, name: str) -> None:
    """Its line is named."""
    text = SIDE_EFFECTS[name]
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
    assert len(walk.left_to_workers) == 1


def test_reason_names_the_first_side_effect(folder: Folder) -> None:
    walk = folder.read("import numpy\nnumpy.run()\nif 1:\n    import tqdm\n")

    assert walk.left_to_workers == [
        ("what is imported from script.py:2 on", "that line may have side effects")
    ]


def test_no_reason_if_no_import_follows(folder: Folder) -> None:
    walk = folder.read("import numpy\nnumpy.run()\ndef main():\n    import tqdm\n")

    assert (walk.first_side_effect, walk.left_to_workers) == ("script.py:2", [])


def test_unlisted_package_is_named(folder: Folder) -> None:
    walk = folder.read("import unlisted.part\nimport isaacgym\nimport tqdm")

    assert walk.first_side_effect == "script.py:1"
    assert walk.left_to_workers == [
        (
            "unlisted and what is imported after it",
            "it is not on the list of packages that may be imported before a fork",
        )
    ]


def test_package_that_must_precede_torch_is_named(folder: Folder) -> None:
    walk = folder.read("import tqdm, isaacgym\nimport unlisted")

    assert walk.left_to_workers == [
        ("isaacgym and what is imported after it", "it must be imported before torch")
    ]


def test_package_left_to_workers(folder: Folder) -> None:
    """Later imports, and verified packages that it imports, are preloaded."""
    folder.install("lightning/__init__.py")
    folder.install("scipy/signal.py")
    folder.install("matplotlib/__init__.py")

    walk = folder.read("import lightning.pytorch as pl\nfrom lightning import Trainer\nimport tqdm")

    reason = "it reads RANK when it is imported"
    assert walk.left_to_workers == [("lightning.pytorch", reason), ("lightning", reason)]
    assert names(walk)[:1] == ["torch"]
    assert names(walk)[-1:] == ["tqdm"]
    assert walk.first_side_effect is None


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import nosuch", ["numpy", "tqdm"]),
        ("from nosuch import a", ["numpy", "tqdm"]),
        # Submodules of installed packages are not searched.
        ("import yaml.nosuch.a", ["numpy", "yaml.nosuch.a", "tqdm"]),
        # It fails in the worker.
        ("from . import tqdm", ["numpy", "tqdm"]),
    ],
)
def test_missing_module_is_skipped(folder: Folder, code: str, found: list[str]) -> None:
    """Python reports it in the worker, unless the script catches the error."""
    assert names(folder.read(f"import numpy\n{code}\nimport tqdm")) == found


# Files beside the script, the script, the preloadable modules, and the first side effect.
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
def test_own_modules_are_read_like_the_script(folder: Folder, name: str) -> None:
    files, script, found, first_side_effect = OWN_MODULES[name]
    for file, text in files.items():
        folder.write(file, text)

    walk = folder.read(script)

    assert (names(walk), walk.first_side_effect or "") == (found.split(), first_side_effect)


@pytest.mark.parametrize("own", ["", "\n" * 50])
def test_side_effect_of_own_module_ends_preloading(folder: Folder, own: str) -> None:
    folder.write("own.py", f"import tqdm{own}\ntqdm.setup()\n")

    walk = folder.read("import numpy\nimport own\nimport json\n")

    line = f"own.py:{2 + len(own)}"
    assert (names(walk), walk.first_side_effect) == (["numpy", "tqdm"], line)
    assert walk.left_to_workers == [
        (f"what is imported from {line} on", "that line may have side effects")
    ]


def test_own_packages_and_submodules_are_read(folder: Folder) -> None:
    folder.write("own/__init__.py", "import numpy\n")
    folder.write("own/deep/__init__.py", "from . import beside\n")
    folder.write("own/deep/beside.py", "import tqdm\nfrom ..above import A\n")
    folder.write("own/deep/model.py", "from .beside import B\nimport yaml.inner\n")
    folder.write("own/above.py", "import json\n")

    walk = folder.read("from own.deep import model\nimport decimal\n")

    assert names(walk) == ["numpy", "tqdm", "json", "yaml.inner", "decimal"]


def test_module_run_by_m(folder: Folder) -> None:
    """``-m`` imports its package first, and relative imports work."""
    folder.write("own/__init__.py", "import numpy\n")
    folder.write("own/train.py", "from .model import A\nimport yaml\n")
    folder.write("own/model.py", "import tqdm\n")

    walk = folder.read_module("own.train")

    assert names(walk) == ["numpy", "tqdm", "yaml"]
    assert walk.main_file == str(folder.path / "own/train.py")


def test_package_run_by_m(folder: Folder) -> None:
    folder.write("own/__init__.py", "import numpy\n")
    folder.write("own/__main__.py", "from . import model\nimport yaml\n")
    folder.write("own/model.py", "import tqdm\n")

    walk = folder.read_module("own")

    assert names(walk) == ["numpy", "tqdm", "yaml"]
    assert walk.main_file == str(folder.path / "own/__main__.py")


def test_installed_module_run_by_m(folder: Folder) -> None:
    """It is read as the user's own."""
    folder.install("trainer/__init__.py", "import numpy\n")
    folder.install("trainer/__main__.py", "from .model import A\nimport tqdm\nA()\nimport torch")
    folder.install("trainer/model.py", "import yaml\n")

    walk = folder.read_module("trainer")

    assert (names(walk), walk.first_side_effect) == (["numpy", "yaml", "tqdm"], "__main__.py:3")
    assert walk.imports_torch


def test_missing_module_run_by_m(folder: Folder) -> None:
    walk = folder.read_module("nosuch.train")

    assert (names(walk), walk.main_file, walk.imports_only_stdlib) == ([], "", False)


@pytest.mark.usefixtures("folder")
def test_source_encoding() -> None:
    walk = script_walk.ScriptWalk()

    walk.read_script("# coding: latin-1\nNAME = '\xe4'\nimport tqdm\n".encode("latin-1"), "x.py")

    assert names(walk) == ["tqdm"]


ONLY_STDLIB = {
    "nothing": ("", True),
    "of_python": ("import json, os.path\nfrom collections import abc", True),
    "in_a_function": ("def main():\n    import numpy", False),
    "in_a_condition": ("if 1:\n    pass\nelse:\n    import numpy", False),
    "in_an_attempt": ("try:\n    pass\nexcept Exception:\n    import numpy", False),
    "of_the_user": ("import own", False),
    "of_its_package": ("from . import own", False),
    "no_python": ("def broken(:", False),
}


@pytest.mark.parametrize("name", ONLY_STDLIB)
def test_imports_only_stdlib(folder: Folder, name: str) -> None:
    """Every import counts, wherever it is."""
    script, expected = ONLY_STDLIB[name]
    folder.write("own.py", "")

    assert folder.read(script).imports_only_stdlib == expected


# Files beside the script, and the script, which has a side effect before it imports torch.
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
    # In these the text does not show whether the import is executed.
    "in_the_main_guard_of_an_imported_module": (
        {"own.py": "if __name__ == '__main__':\n    import torch"},
        "print()\nimport own",
    ),
    "in_a_function_that_another_calls": ({}, "def main():\n    import torch\nfire.Fire(main)"),
    "in_a_function_decorated_by_an_app": ({}, "@app.command\ndef main():\n    import torch\napp()"),
    "in_an_own_module_of_a_function_that_another_calls": (
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


@pytest.mark.parametrize("name", TORCH_IS_IMPORTED)
def test_torch_imported_after_side_effect(folder: Folder, name: str) -> None:
    files, script = TORCH_IS_IMPORTED[name]
    for file, text in files.items():
        folder.write(file, text)

    walk = folder.read(script)

    assert (walk.imports_torch, walk.obstacle, walk.settings) == (True, None, [])
    assert "torch" not in names(walk)


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
def test_torch_not_imported(folder: Folder, name: str) -> None:
    files, script = TORCH_IS_NOT_IMPORTED[name]
    for file, text in files.items():
        folder.write(file, text)

    walk = folder.read(script)

    assert (walk.first_side_effect is not None, walk.imports_torch, walk.obstacle) == (
        True,
        False,
        None,
    )


def test_torch_not_installed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_torch_imported_before_side_effect(folder: Folder, script: str) -> None:
    """Later statements do not matter."""
    folder.install("accelerate/__init__.py")
    folder.install("accelerate-1.0.dist-info/METADATA", "Requires-Dist: torch (>=2.0.0)\n")

    assert not folder.read(script).imports_torch


@pytest.mark.parametrize(("main", "module"), [("train", "own.train"), ("__main__", "own")])
def test_torch_in_module_run_by_m(folder: Folder, main: str, module: str) -> None:
    """Its main guard is that of a script."""
    folder.write("own/__init__.py", "from .model import Net\n__version__ = version('own')")
    folder.write("own/model.py", "class Net: pass\nif __name__ == '__main__':\n    import torch")
    folder.write(
        f"own/{main}.py", "from .data import D\nif __name__ == '__main__':\n    import torch"
    )
    folder.write("own/data.py", "import os\nos.environ['OMP_NUM_THREADS'] = '2'")

    walk = folder.read_module(module)

    assert (walk.first_side_effect, walk.imports_torch) == ("__init__.py:2", True)
    assert walk.settings == [("OMP_NUM_THREADS", "2", False)]


VARIABLE = "script.py:1 sets OMP_NUM_THREADS"

# Statements, and what one of them does, with its file and line.
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
    "popped": ("os.environ.pop('OMP_NUM_THREADS', None)", VARIABLE),
    "deleted": ("del os.environ['OMP_NUM_THREADS']", VARIABLE),
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
def test_obstacle_before_torch_is_named(folder: Folder, name: str) -> None:
    statements, obstacle = OBSTACLES[name]
    for package in ("comet_ml", "mpi4py", "psutil"):
        folder.install(f"{package}.py")
    folder.write("own.py", "import os\nos.environ['PYTORCH_JIT'] = chosen()")
    folder.write("lazy.py", "def set_up():\n    sys.stdout = 1\n")

    walk = folder.read(f"{statements}\nimport torch")

    assert (walk.imports_torch, walk.settings) == (True, [])
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
def test_no_obstacle_before_torch(folder: Folder, name: str) -> None:
    folder.write("own.py", "if __name__ == '__main__':\n    os.putenv('A', 'b')")

    walk = folder.read(f"{NO_OBSTACLES[name]}\nimport torch")

    assert (walk.first_side_effect is not None, walk.imports_torch) == (True, True)
    assert (walk.obstacle, walk.settings) == (None, [])


def test_statements_after_torch_do_not_matter(folder: Folder) -> None:
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

    assert (walk.imports_torch, walk.obstacle) == (True, None)


VARIABLES_SET = {
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


CONDITIONAL_IMPORTS = {
    "branch": ("if numpy.FLAG:\n    import pandas", ["numpy", "json"]),
    "other_branch": ("if numpy.FLAG:\n    pass\nelse:\n    import pandas", ["numpy", "json"]),
    "handler": ("try:\n    pass\nexcept OSError:\n    import pandas", ["numpy", "json"]),
    "attempt": ("try:\n    import pandas\nexcept OSError:\n    pass", ["numpy", "pandas", "json"]),
    "block": ("with numpy.FLAG:\n    import pandas", ["numpy", "pandas", "json"]),
}


@pytest.mark.parametrize("name", CONDITIONAL_IMPORTS)
def test_conditional_import_is_not_preloaded(folder: Folder, name: str) -> None:
    """Otherwise the script might find a module that it has not imported."""
    folder.install("pandas.py")
    statements, found = CONDITIONAL_IMPORTS[name]

    walk = folder.read(f"import numpy\n{statements}\nimport json")

    assert (names(walk), walk.first_side_effect) == (found, None)


def test_conditional_torch_is_hidden(folder: Folder) -> None:
    """Even if there is no side effect before it."""
    walk = folder.read("import numpy\nif numpy.FLAG:\n    import torch")

    assert names(walk) == ["numpy"]
    assert walk.imports_torch


@pytest.mark.parametrize("name", VARIABLES_SET)
def test_variables_set_to_constants(folder: Folder, name: str) -> None:
    """They are set for the server's import of torch too."""
    statements, settings = VARIABLES_SET[name]
    folder.write("own.py", "import os\nos.environ['PYTORCH_JIT'] = '0'")

    walk = folder.read(f"{statements}\nimport torch\nos.environ['TORCH_LOGS'] = 'later'")

    assert (walk.imports_torch, walk.obstacle, walk.settings) == (True, None, settings)


@pytest.mark.parametrize(
    ("script", "slow"),
    [
        ("print()\nimport tqdm, numpy\nimport numba", ["numpy", "numba"]),
        ("import tqdm\ntqdm.run()\nimport yaml", []),
        ("import numpy\nnumpy.run()", []),
        ("import unlisted\nimport numpy", ["numpy"]),
        # The walk ends at torch.
        ("print()\nimport torch\nimport numpy", []),
    ],
)
def test_slow_packages_after_side_effect(folder: Folder, script: str, slow: list[str]) -> None:
    folder.install("numba/__init__.py")

    assert folder.read(script).slow_after_side_effect == slow


class TestLimits:
    """Large and deep scripts, recursive calls and imports."""

    def test_time_limit(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
        """The files read until then count."""
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

    def test_recursive_functions(self, folder: Folder) -> None:
        walk = folder.read("def a():\n    b()\ndef b():\n    a()\n    import torch\na()")

        assert walk.imports_torch

    def test_deep_calls_are_not_followed(self, folder: Folder) -> None:
        calls = "\n".join(f"def f{n}():\n    f{n + 1}()" for n in range(500))

        text = f"{calls}\ndef f500():\n    os.environ['OMP_NUM_THREADS'] = str(3)\nf0()\n"

        assert folder.read(f"{text}f490()\nimport torch").obstacle
        assert not folder.read(f"{text}import torch").obstacle

    def test_deep_expression(self, folder: Folder) -> None:
        """Deeper than Python's own stack."""
        walk = folder.read(f"x = y{'.f()' * 900}\nimport torch")

        assert (walk.first_side_effect, walk.imports_torch) == ("script.py:1", True)

    def test_deep_blocks(self, folder: Folder) -> None:
        """Up to Python's own limit."""
        lines = [" " * n + "if x:" for n in range(90)]
        lines += [" " * 90 + "f()", " " * 90 + "import torch"]

        assert folder.read("\n".join(lines)).imports_torch

    def test_long_elif_chain(self, folder: Folder) -> None:
        """In the syntax tree, each ``elif`` is nested in the one before."""
        script = "if a: pass\n" + "elif b: pass\n" * 800 + "import torch"

        walk = folder.read(f"import numpy\n{script}")

        assert (names(walk), walk.unread) == (["numpy"], "script.py is nested too deeply")

    def test_long_import_chain(self, folder: Folder) -> None:
        for n in range(500):
            folder.write(f"own{n}.py", f"import own{n + 1}")
        folder.write("own500.py", "import own0\nimport torch")

        walk = folder.read("import own0\nimport numpy")
        walk.read_remaining_modules()

        assert "torch" not in names(walk)
        assert len(walk.sources) == 502

    def test_import_cycle(self, folder: Folder) -> None:
        for n in range(50):
            folder.write(f"own{n}.py", f"import own{n + 1}")
        folder.write("own50.py", "import own0\nprint()\nimport torch")

        assert folder.read("import own0").imports_torch


def test_remaining_modules_are_read(folder: Folder) -> None:
    """Including those that functions import."""
    folder.write("own/__init__.py", "from . import models")
    folder.write("own/models.py", "def f():\n    from .layers import x")
    folder.write("own/layers.py", "import broken")
    folder.write("broken.py", "def")

    walk = folder.read("import torch\ndef main():\n    from own import models")
    before = [Path(text.path).name for text in walk.sources]
    walk.read_remaining_modules()

    after = [Path(text.path).name for text in walk.sources]
    assert before == ["script.py"]
    assert after == ["script.py", "__init__.py", "models.py", "layers.py"]
    assert walk.unread == "broken.py can't be read"


READ_BY_OTHER_PYTHON = """
import sys
package = type(sys)("fork_server")
package.__path__ = [{folder!r}]
sys.modules["fork_server"] = package
sys.path[:0] = {path!r}
from fork_server.preloading.script_walk import ScriptWalk
walk = ScriptWalk()
walk.read_script({script!r}, "script.py")
walk.read_remaining_modules()
print(repr([each.name for each in walk.preloadable]), walk.first_side_effect, walk.settings, walk.obstacle, sep="|")
"""


def test_oldest_python_finds_the_same(folder: Folder) -> None:
    """Its syntax trees differ: a subscript has an Index node."""
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
    code = READ_BY_OTHER_PYTHON.format(
        folder=str(SOURCES / "fork_server"), path=path, script=script.encode()
    )

    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )

    assert done.stdout.strip().split("|") == [
        "['os', 'numpy']",
        "script.py:3",
        "[('OMP_NUM_THREADS', '1', False)]",
        "script.py:5 sets MKL_NUM_THREADS before torch is imported",
    ]


def test_is_installed() -> None:
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
def test_is_stdlib(name: str, *, expected: bool) -> None:
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
def test_requires_torch(folder: Folder, requirement: str) -> None:
    """By its METADATA; requirements of extras do not count."""
    folder.install("some/__init__.py")
    folder.install("some-2.1.dist-info/METADATA", f"Name: some\nRequires-Dist: {requirement}\n")

    assert module_files.requires("some", "torch") is REQUIREMENTS[requirement]
    assert not module_files.requires("yaml", "torch")
    assert not module_files.requires("nosuch", "torch")


def test_requires_torch_by_another_package(folder: Folder) -> None:
    """Trl needs accelerate, which needs torch."""
    for name, needed in {
        "upper": "lower-one[fast]>=1; python_version > '3'",
        "lower_one": "torch",
    }.items():
        folder.install(f"{name}.py")
        text = f"Name: {name}\nRequires-Dist: {needed}\n"
        folder.write(f"site-packages/{name}-1.0.dist-info/METADATA", text)

    assert module_files.requires("upper", "torch")


def test_nested_folder_without_init(folder: Folder) -> None:
    """Its modules are found, although Python's finder needs the outer folder imported."""
    folder.write("loose/deeper/own.py", "import sys\nsys.stdout = None\nimport torch")

    walk = folder.read("from loose.deeper.own import a")

    assert walk.obstacle == "own.py:2 replaces sys.stdout before torch is imported"
