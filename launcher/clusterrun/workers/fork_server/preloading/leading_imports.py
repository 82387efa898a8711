"""What a script imports first, found by reading it.

The leading imports are those before the first statement that could do something else: set a
variable, read an argument, patch a module. Docstrings, constants, functions and classes may stand
between them. Installed modules are imported whole. The user's own modules, beside the script or on
PYTHONPATH, are read by the same rule, and run in the workers only.
"""

from __future__ import annotations

import _ast
import os

from ..scripts.script import compile_quietly
from .module_files import file_of, is_builtin_or_installed, is_standard
from .statements import (
    Import,
    all_imported_modules,
    imports_of,
    imports_something,
    only_defines,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_ONLY_AST = 0x400
"""PyCF_ONLY_AST (Include/cpython/compile.h): ``ast.parse`` without the module ``ast``."""


class LeadingImports:
    """Reads a script, and the user's own modules that it imports first."""

    def __init__(self) -> None:
        self.found: list[Import] = []
        """The imports of installed modules, in order."""
        self.needs_only_python = True
        """Whether all that the script imports, anywhere in it, comes with Python."""
        self.stopped_at = ""
        """The statement that ended the leading part, "" if there is none: "/home/me/train.py:12"."""
        self.imports_follow = False
        """Whether there are imports after it."""
        self._read: set[str] = set()

    def read_script(self, source: bytes, path: str) -> None:
        self._read_source(source, path, package="")

    def read_module(self, name: str) -> str:
        """Read what ``python -m name`` runs, and what is imported for it; return its file, or ""."""
        file = self._read_module(name)
        if not file:
            self.needs_only_python = False
        return file

    def _read_module(self, name: str) -> str:
        package, _, _ = name.rpartition(".")
        if package and not self._follow(Import(package, ())):
            return ""
        file = file_of(name) or file_of(name + ".__main__")
        if not file.endswith(".py"):
            return ""
        if os.path.basename(file) == "__init__.py":
            if not self._follow(Import(name, ())):
                return ""
            file = os.path.join(os.path.dirname(file), "__main__.py")
            package = name
        source = _source_of(file)
        if source is None:
            return ""
        self._read_source(source, file, package)
        return file

    def _read_source(self, source: bytes, path: str, package: str) -> bool:
        """Read one file; return whether all of it is leading."""
        try:
            tree, _ = compile_quietly(source, path, _ONLY_AST)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.needs_only_python = False
            return self._stop(path, 1, ())
        if self.needs_only_python:
            names = all_imported_modules(tree)
            self.needs_only_python = all(is_standard(name.partition(".")[0]) for name in names)
        for number, statement in enumerate(tree.body):
            if isinstance(statement, (_ast.Import, _ast.ImportFrom)):
                for wanted in imports_of(statement, package):
                    if not self._follow(wanted):
                        return self._stop(path, statement.lineno, tree.body[number + 1 :])
            elif not only_defines(statement):
                # It may matter to all that the script imports after it.
                return self._stop(path, statement.lineno, tree.body[number:])
        return True

    def _stop(self, path: str, line: int, rest: Sequence[Any]) -> bool:
        self.stopped_at = self.stopped_at or f"{path}:{line}"
        self.imports_follow = self.imports_follow or any(map(imports_something, rest))
        return False

    def _follow(self, wanted: Import) -> bool:
        """Note an import, or read what it would run; return whether to go on."""
        if not wanted.name:
            return False
        if is_builtin_or_installed(wanted.name.partition(".")[0]):
            self.found.append(wanted)
            return True
        return self._read_own(wanted)

    def _read_own(self, wanted: Import) -> bool:
        """Read a module of the user's, its packages first, and submodules that are imported from it."""
        names = wanted.name.split(".")
        modules = [".".join(names[: n + 1]) for n in range(len(names))]
        modules += [f"{wanted.name}.{name}" for name in wanted.names if name != "*"]
        for number, module in enumerate(modules):
            file = file_of(module)
            if number >= len(names) and not file:
                continue  # a name in the module, no module
            if not file.endswith(".py"):
                return False
            if module in self._read:
                continue
            self._read.add(module)
            is_package = os.path.basename(file) == "__init__.py"
            package = module if is_package else module.rpartition(".")[0]
            source = _source_of(file)
            if source is None or not self._read_source(source, file, package):
                return False
        return True


def _source_of(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return None
