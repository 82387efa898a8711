"""ScriptWalk finds what a script does before it imports torch, without importing anything."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from clusterrun.workers.fork_server.preloading import module_files, script_walk

from tests.imports import output_of
from tests.workers.fork_server.preloading.script_table import Row, rows_of
from tests.workers.interpreters import FORK_SERVER, oldest_python


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


def facts(walk: script_walk.ScriptWalk, folder: Path) -> dict[str, str]:
    """Return what was found, by the names of ``shows`` in the table; "" is not shown."""
    main = walk.main_file and Path(walk.main_file).relative_to(folder)
    return {
        "main file": f"runs {main}" if main else "",
        "preloaded": " ".join(names(walk)),
        "side effect": f"side effect {walk.first_side_effect}" if walk.first_side_effect else "",
        "left": f"{len(walk.left_to_workers)} left" if walk.left_to_workers else "",
        "why left": ", ".join(f"{name} ({why})" for name, why in walk.left_to_workers),
        "only stdlib": "only stdlib" if walk.imports_only_stdlib else "",
        "torch": "torch" if walk.imports_torch else "",
        "torch preloaded": "torch is preloaded" if "torch" in names(walk) else "",
        "obstacle": walk.obstacle or "",
        "obstacle before torch": (walk.obstacle or "").removesuffix(" before torch is imported"),
        "settings": " ".join(
            f"{name}={value}{' unless set' if is_default else ''}"
            for name, value, is_default in walk.settings
        ),
        "slow": " ".join(
            ["slow", *walk.slow_after_side_effect] * bool(walk.slow_after_side_effect)
        ),
    }


@pytest.mark.parametrize("row", rows_of("scripts.txt"))
def test_script(folder: Folder, row: Row) -> None:
    for file, text in row.files.items():
        folder.write(file, text)

    is_module = row.script.startswith("-m ")
    walk = folder.read_module(row.script[3:]) if is_module else folder.read(row.script)

    found = facts(walk, folder.path)
    assert ("; ".join(filter(None, (found[each] for each in row.shows))) or "nothing") == row.found


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


@pytest.mark.usefixtures("folder")
def test_source_encoding() -> None:
    walk = script_walk.ScriptWalk()

    walk.read_script("# coding: latin-1\nNAME = '\xe4'\nimport tqdm\n".encode("latin-1"), "x.py")

    assert names(walk) == ["tqdm"]


def test_torch_not_installed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(folder.path)])

    assert not folder.read("print()\nimport torch").imports_torch


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
    code = READ_BY_OTHER_PYTHON.format(path=path, script=script.encode())

    assert output_of(FORK_SERVER + code, python).strip().split("|") == [
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
