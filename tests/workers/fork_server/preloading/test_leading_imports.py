"""What a script imports first is found by reading it; nothing is imported for that."""

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.workers.door import leading_imports, module_files


class Folder:
    """A script's folder, and one of installed modules."""

    def __init__(self, path: Path) -> None:
        """Make ``installed``, ``other`` and ``package`` with ``package.inner``."""
        self.path = path
        self.write("site-packages/installed.py", "")
        self.write("site-packages/other.py", "")
        self.write("site-packages/package/__init__.py", "")
        self.write("site-packages/package/inner.py", "")

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))

    def read(self, script: str) -> leading_imports.LeadingImports:
        reading = leading_imports.LeadingImports()
        reading.read_script(dedent(script).encode(), str(self.path / "script.py"))
        return reading

    def read_module(self, name: str) -> leading_imports.LeadingImports:
        """Read what ``python -m`` runs."""
        reading = leading_imports.LeadingImports()
        reading.read_module(name)
        return reading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """Return a folder whose modules are found; check afterwards that none was imported."""
    folder = Folder(tmp_path)
    paths = [str(tmp_path), *sys.path, str(tmp_path / "site-packages")]
    monkeypatch.setattr(sys, "path", paths)
    before = set(sys.modules)

    yield folder

    assert not {name for name in set(sys.modules) - before if "encodings" not in name}


def names(reading: leading_imports.LeadingImports) -> list[str]:
    """Return the modules that were found, in order."""
    return [wanted.name for wanted in reading.found]


def stop(reading: leading_imports.LeadingImports) -> str:
    """Return where the leading part ends: file's name and line."""
    return Path(reading.stopped_at).name


def test_imports_in_their_order(folder: Folder) -> None:
    """They are installed, come with Python, or are built in."""
    reading = folder.read(
        """
        from __future__ import annotations
        import sys, other
        import installed as short
        from package import inner, nothing
        import package.inner
        from json import *
        """
    )

    assert [(wanted.name, wanted.names) for wanted in reading.found] == [
        ("sys", ()),
        ("other", ()),
        ("installed", ()),
        ("package", ("inner", "nothing")),
        ("package.inner", ()),
        ("json", ("*",)),
    ]
    assert (reading.stopped_at, reading.imports_follow) == ("", False)


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
    "function": "def main(rate=0.1, *, steps=10): installed.run(rate)",
    "coroutine": "async def main(): await installed.run()",
    "class": "class Model:\n    'Doc.'\n    size = 3\n    def forward(self): return installed.run()",
    "for_type_checkers": "if TYPE_CHECKING:\n    import nothing",
    "for_type_checkers_of_typing": "if typing.TYPE_CHECKING:\n    import nothing",
    "lazy_import": "def main():\n    import nothing",
    "template": "NAME = f'a'",
    "annotations": "def main(rate: installed.Rate | None, n: list['x'] = 3) -> installed.T['a b']: pass",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_statements_that_may_stand_between(folder: Folder, name: str) -> None:
    """They name constants, functions and classes, and run nothing."""
    reading = folder.read(f"import installed\n{HARMLESS[name]}\nimport other")

    assert names(reading) == ["installed", "other"]
    assert reading.stopped_at == ""


STOPS = {
    "keyword_of_a_class": "class Model(Base, metaclass=installed.Meta, frozen=True): pass",
    "decorated_class": "@dataclass\nclass Config:\n    rate: float = 0.1",
    "decorated_function": "@installed.no_grad\ndef evaluate(): pass",
    "subclass": "class Model(installed.nn.Module): pass",
    "call": "installed.setup()",
    "assigned_call": "device = installed.device()",
    "variable": "os.environ['NAME'] = '1'",
    "attribute": "installed.flag = True",
    "item": "installed.options['a'] = 1",
    "augmented": "SIZE += 1",
    "name": "nn = installed.nn",
    "call_in_a_list": "SIZES = [len('a')]",
    "call_in_a_template": "NAME = f'{installed.name()}'",
    "condition": "if installed.version: pass",
    "attempt": "try:\n    import nothing\nexcept ImportError:\n    nothing = None",
    "loop": "for n in range(3): pass",
    "block": "with installed.quiet(): pass",
    "deleted": "del installed",
    "checked": "assert installed",
    "called_decorator": "@installed.record('a')\ndef main(): pass",
    "default_that_is_called": "def main(device=installed.device()): pass",
    "keyword_default_that_is_called": "def main(*, device=installed.device()): pass",
    "class_that_calls": "class Model:\n    size = installed.size()",
    "base_that_is_called": "class Model(installed.base()): pass",
    "keyword_that_is_called": "class Model(metaclass=installed.meta()): pass",
    "annotation_that_is_called": "def main(rate: installed.kind()): pass",
    "returned_annotation_that_is_called": "def main() -> installed.kind(): pass",
    "annotated_variable_that_is_called": "RATE: installed.kind() = 1",
    "type_checking_with_else": "if TYPE_CHECKING:\n    pass\nelse:\n    installed.run()",
    "not_type_checking": "if not TYPE_CHECKING:\n    installed.run()",
    "walrus": "(n := installed.run())",
    "comprehension": "N = [x for x in installed.all]",
    "unpacked": "A, B = installed.pair",
}


@pytest.mark.parametrize("name", STOPS)
def test_statements_that_end_the_leading_part(folder: Folder, name: str) -> None:
    """They may do anything: the worker itself imports what follows them."""
    reading = folder.read(f"import installed\n{STOPS[name]}\nimport other")

    assert names(reading) == ["installed"]
    # The line of a function is that of its name.
    assert stop(reading) == ("script.py:3" if STOPS[name].startswith("@") else "script.py:2")
    assert reading.imports_follow


def test_no_imports_follow(folder: Folder) -> None:
    reading = folder.read("import installed\ninstalled.run()\ndef main():\n    import other\n")

    assert stop(reading) == "script.py:2"
    assert not reading.imports_follow


def test_an_import_that_is_tried(folder: Folder) -> None:
    reading = folder.read(
        "installed.run()\ntry:\n    pass\nexcept ImportError:\n    import other\n"
    )

    assert reading.imports_follow


@pytest.mark.parametrize(
    "code", ["import nosuch", "from nosuch import a", "import package.nosuch.a"]
)
def test_what_is_not_there(folder: Folder, code: str) -> None:
    """Python reports it in the worker; no later import is preloaded."""
    reading = folder.read(f"import installed\n{code}\nimport other")

    found = names(reading)
    assert found[0] == "installed"
    # Submodules of an installed package are not checked: the worker's import fails.
    assert "other" not in found or "package.nosuch.a" in found


# Files beside the script, the script, what is found, and where the leading part ends.
OWN_MODULES: dict[str, tuple[dict[str, str], str, str, str]] = {
    "relative_import_of_a_script": (
        {},
        "import installed\nfrom . import other",
        "installed",
        "script.py:2",
    ),
    "no_python": ({}, "import installed\ndef broken(:", "", "script.py:1"),
    "read_but_not_imported": (
        {"own.py": "import other\nSIZE = 1"},
        "import installed\nimport own\nimport package",
        "installed other package",
        "",
    ),
    "name_in_a_module": (
        {"own.py": "import other\nSIZE = 1"},
        "from own import SIZE\nimport package",
        "other package",
        "",
    ),
    "import_of_each_other": (
        {"one.py": "import two\nimport installed", "two.py": "import one\nimport other"},
        "import one\nimport two",
        "other installed",
        "",
    ),
    "relative_import_beyond_the_package": (
        {"own/__init__.py": "from ... import installed"},
        "import own\nimport other",
        "",
        "__init__.py:1",
    ),
    "namespace_package": (
        {"loose/own.py": "import installed"},
        "import loose.own\nimport other",
        "",
        "script.py:1",
    ),
    "shadows_an_installed_module": (
        {"installed.py": "import other", "json.py": "import package"},
        "import installed\nimport json",
        "other package",
        "",
    ),
    "extension": (
        {"own.abi3.so": ""},
        "import installed\nimport own\nimport other",
        "installed",
        "script.py:2",
    ),
    "broken": (
        {"own.py": "def broken(:"},
        "import installed\nimport own\nimport other",
        "installed",
        "own.py:1",
    ),
}


@pytest.mark.parametrize("name", OWN_MODULES)
def test_the_users_own_modules(folder: Folder, name: str) -> None:
    """They are read by the same rule as the script, and run in the workers only."""
    files, script, found, stopped_at = OWN_MODULES[name]
    for file, text in files.items():
        folder.write(file, text)

    reading = folder.read(script)

    assert (names(reading), stop(reading)) == (found.split(), stopped_at)


def test_the_users_own_module_does_something(folder: Folder) -> None:
    """Later imports of the script are left to the worker."""
    folder.write("own.py", "import other\nother.setup()\nimport package\n")

    reading = folder.read("import installed\nimport own\nimport json\n")

    assert (names(reading), stop(reading)) == (["installed", "other"], "own.py:2")
    assert reading.imports_follow


def test_the_users_own_package(folder: Folder) -> None:
    """Each package on the way is read, and modules that are asked for by name."""
    folder.write("own/__init__.py", "import installed\n")
    folder.write("own/deep/__init__.py", "from . import beside\n")
    folder.write("own/deep/beside.py", "import other\nfrom ..above import A\n")
    folder.write("own/deep/model.py", "from .beside import B\nimport package.inner\n")
    folder.write("own/above.py", "import json\n")

    reading = folder.read("from own.deep import model\nimport decimal\n")

    assert names(reading) == ["installed", "other", "json", "package.inner", "decimal"]


def test_a_module_that_is_run(folder: Folder) -> None:
    """``-m`` imports its package first; it is no script, and relative imports work."""
    folder.write("own/__init__.py", "import installed\n")
    folder.write("own/train.py", "from .model import A\nimport package\n")
    folder.write("own/model.py", "import other\n")

    assert names(folder.read_module("own.train")) == ["installed", "other", "package"]


def test_a_package_that_is_run(folder: Folder) -> None:
    folder.write("own/__init__.py", "import installed\n")
    folder.write("own/__main__.py", "from . import model\nimport package\n")
    folder.write("own/model.py", "import other\n")

    assert names(folder.read_module("own")) == ["installed", "other", "package"]


def test_a_module_that_is_run_and_not_there(folder: Folder) -> None:
    assert names(folder.read_module("nosuch.train")) == []


@pytest.mark.usefixtures("folder")
def test_an_encoding() -> None:
    reading = leading_imports.LeadingImports()

    reading.read_script(
        "# coding: latin-1\nNAME = '\xe4'\nimport other\n".encode("latin-1"), "x.py"
    )

    assert names(reading) == ["other"]


ONLY_PYTHON = {
    "nothing": ("", True),
    "of_python": ("import json, os.path\nfrom collections import abc", True),
    "in_a_function": ("def main():\n    import installed", False),
    "in_a_condition": ("if 1:\n    pass\nelse:\n    import installed", False),
    "in_an_attempt": ("try:\n    pass\nexcept Exception:\n    import installed", False),
    "of_the_user": ("import own", False),
    "of_its_package": ("from . import own", False),
}


@pytest.mark.parametrize("name", ONLY_PYTHON)
def test_whether_a_script_needs_only_python(folder: Folder, name: str) -> None:
    """Every import counts, wherever it is."""
    script, expected = ONLY_PYTHON[name]
    folder.write("own.py", "")

    assert folder.read(script).needs_only_python == expected


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
    [("sys", True), ("json", True), ("pytest", False), ("nosuch", False), ("installed", False)],
)
def test_what_comes_with_python(name: str, *, expected: bool) -> None:
    assert module_files.is_standard(name) is expected
