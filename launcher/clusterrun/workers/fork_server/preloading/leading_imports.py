"""What a script imports first, found by reading it.

The leading imports are those before the first statement that could do something else: set a
variable, read an argument, patch a module. Docstrings, constants, functions and classes may stand
between them. Installed modules are imported whole. The user's own modules, beside the script or on
PYTHONPATH, are read by the same rule, and run in the workers only.
"""

from __future__ import annotations

import _ast
import os

from ..script import compile_quietly
from .module_files import file_of, is_builtin_or_installed, is_standard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any


_LITERALS = (_ast.Tuple, _ast.List, _ast.Set, _ast.Dict, _ast.UnaryOp, _ast.BinOp, _ast.JoinedStr)
_BLOCKS = (_ast.If, _ast.Try, _ast.ExceptHandler, _ast.With)


class Import:
    """One import of a module: ``from NAME import NAMES``, or ``import NAME``; NAME is absolute."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        self.name = name
        self.names = names


def imports_of(statement: Any, package: str) -> Iterator[Import]:
    """Yield what an import statement imports; a relative import is resolved in ``package``."""
    if isinstance(statement, _ast.Import):
        for alias in statement.names:
            yield Import(alias.name, ())
        return
    if statement.module == "__future__":
        return
    names = tuple(alias.name for alias in statement.names)
    if not statement.level:
        yield Import(statement.module, names)
        return
    base = package.split(".") if package else []
    base = base[: len(base) - statement.level + 1]
    # "from . import x" without a package fails in the worker, as it should.
    whole = ".".join([*base, *([statement.module] if statement.module else [])])
    yield Import(whole if base else "", names)


def all_imported_modules(tree: Any) -> Iterator[str]:
    """Yield the modules that any statement of a file imports, "" for a relative import."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, _ast.ImportFrom):
            yield "" if node.level else str(node.module)
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            parts = getattr(node, field, ())
            waiting.extend(part for part in parts if isinstance(part, _ast.AST))


def imports_something(statement: Any) -> bool:
    """Tell whether a statement, or one inside its blocks, is an import."""
    if isinstance(statement, (_ast.Import, _ast.ImportFrom)):
        return True
    return isinstance(statement, _BLOCKS) and any(map(imports_something, children(statement)))


def only_defines(statement: Any) -> bool:
    """Tell whether a statement does no more than to name a constant, a function or a class."""
    if isinstance(statement, _ast.Pass):
        return True
    if isinstance(statement, _ast.Expr):
        return _is_constant(statement.value)
    if isinstance(statement, _ast.Assign):
        names = all(isinstance(target, _ast.Name) for target in statement.targets)
        return names and _is_constant(statement.value)
    if isinstance(statement, _ast.AnnAssign):
        simple = isinstance(statement.target, _ast.Name) and not _has_calls(statement.annotation)
        return simple and (statement.value is None or _is_constant(statement.value))
    if isinstance(statement, (_ast.FunctionDef, _ast.AsyncFunctionDef)):
        # A decorator is called, and may do anything.
        defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
        annotated = filter(None, (statement.args, statement.returns))
        runs_code = statement.decorator_list or any(map(_has_calls, annotated))
        return not runs_code and all(map(_is_constant, defaults))
    if isinstance(statement, _ast.ClassDef):
        # A base class may have __init_subclass__ or a metaclass.
        heads = [*statement.decorator_list, *statement.bases, *statement.keywords]
        return not heads and all(map(only_defines, statement.body))
    if isinstance(statement, _ast.If):
        # Only type checkers read this block.
        return name_of(statement.test) == "TYPE_CHECKING" and not statement.orelse
    return False


def _is_constant(node: Any) -> bool:
    if isinstance(node, _ast.Constant):
        return True
    return isinstance(node, _LITERALS) and all(
        _is_constant(part)
        for part in children(node)
        if not isinstance(part, (_ast.expr_context, _ast.unaryop, _ast.operator))
    )


def _has_calls(node: Any) -> bool:
    return isinstance(node, _ast.Call) or any(map(_has_calls, children(node)))


def name_of(node: Any) -> str:
    """Return the last part of a name or an attribute; "" of another node."""
    return getattr(node, "attr", None) or getattr(node, "id", None) or ""


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below one."""
    for field in node._fields or ():
        value = getattr(node, field, None)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, _ast.AST):
                yield part


MOST_BYTES = 400_000
"""Of text that is read to find out what else may run: more would take longer than 0.1 s."""

_ONLY_AST = 0x400
"""PyCF_ONLY_AST (Include/cpython/compile.h): ``ast.parse`` without the module ``ast``."""


class Text:
    """A file that was read: its source, its syntax, and the package in which its imports are resolved."""

    def __init__(self, source: bytes, tree: Any, package: str) -> None:
        self.source = source
        self.tree = tree
        self.package = package


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
        self.module = ""
        """What ``python -m`` runs; "": a script."""
        self.texts: list[Text] = []
        """All files that were read."""
        self.size = 0
        """Of their sources, and of one that was too large to be read, in bytes."""
        self.unreadable = ""
        """A file that is no Python."""
        self._read: set[str] = set()

    def read_script(self, source: bytes, path: str) -> None:
        self._read_source(source, path, package="")

    def read_module(self, name: str) -> str:
        """Read what ``python -m name`` runs, and what is imported for it; return its file, or ""."""
        self.module = name
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
        if _is_package(file):
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
        tree = self._parsed(source, path, package)
        if tree is None:
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

    def _parsed(self, source: bytes, path: str, package: str) -> Any:
        """Note a text, and return its syntax; None: it is no Python."""
        self.size += len(source)
        try:
            tree, _ = compile_quietly(source, path, _ONLY_AST)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.unreadable = os.path.basename(path)
            return None
        self.texts.append(Text(source, tree, package))
        return tree

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
        for module, file in own_modules_of(wanted):
            if not file.endswith(".py"):
                return False
            if module in self._read:
                continue
            self._read.add(module)
            source = _source_of(file)
            if source is None or not self._read_source(source, file, package_of(module, file)):
                return False
        return True

    def read_also(self, wanted: Import) -> bool:
        """Read what any import of a module of the user's would run; return False if that is unknown."""
        modules = list(own_modules_of(wanted))
        for module, file in modules:
            if "*" in wanted.names and module == wanted.name and _is_package(file):
                # It may import each module of the package.
                return False
            # A package may be a folder alone, which runs nothing; something in it must be found.
            if module in self._read or (not file and module != modules[-1][0]):
                continue
            source = self._small_source_of(file) if file.endswith(".py") else None
            if source is None:
                return False
            self._read.add(module)
            if self._parsed(source, file, package_of(module, file)) is None:
                return False
        return True

    def _small_source_of(self, file: str) -> bytes | None:
        """Return the text of a file unless it makes all of them too much."""
        try:
            size = os.path.getsize(file)
        except OSError:
            return None
        if self.size + size > MOST_BYTES:
            self.size += size
            return None
        return _source_of(file)


def own_modules_of(wanted: Import) -> Iterator[tuple[str, str]]:
    """Yield the modules that an import runs, each with its file, "" if there is none: packages first."""
    names = wanted.name.split(".")
    for number in range(len(names)):
        module = ".".join(names[: number + 1])
        yield module, file_of(module)
    for name in wanted.names:
        module = f"{wanted.name}.{name}"
        # Most are names in the module, and no modules.
        file = "" if name == "*" else file_of(module)
        if file:
            yield module, file


def package_of(module: str, file: str) -> str:
    """Return the package in which the imports of a module are resolved."""
    return module if _is_package(file) else module.rpartition(".")[0]


def _is_package(file: str) -> bool:
    return os.path.basename(file) == "__init__.py"


def _source_of(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return None
