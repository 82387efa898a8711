"""What a script imports first, found by reading it.

The leading imports are those before the first statement that could do something else: set a
variable, read an argument, patch a module. Docstrings, constants, functions and classes may stand
between them. Modules that are installed are imported whole; the user's own, beside the script or on
PYTHONPATH, are read by the same rule, and run in the workers only.
"""

from __future__ import annotations

import _ast
import os
import sys

from .quiet_compile import compile_quietly

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

_ONLY_AST = 0x400
"""PyCF_ONLY_AST (Include/cpython/compile.h): ``ast.parse`` without the module ``ast``."""

_LITERALS = (_ast.Tuple, _ast.List, _ast.Set, _ast.Dict, _ast.UnaryOp, _ast.BinOp, _ast.JoinedStr)
_INSTALLED = ("site-packages", "dist-packages")


class Import:
    """One import of an installed module: ``from NAME import NAMES``, or ``import NAME``."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        """Take the module's full name, and what is asked of it."""
        self.name = name
        self.names = names


class LeadingImports:
    """Reads a script, and the user's own modules that it imports first."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.found: list[Import] = []
        self.needs_only_python = True
        """Whether all that the script imports, anywhere in it, comes with Python."""
        self.stopped_at = ""
        """The statement that ended the leading part, "" if there is none: "/home/me/train.py:12"."""
        self.imports_follow = False
        """Whether there are imports behind it."""
        self._read: set[str] = set()

    def read_script(self, source: bytes, path: str) -> None:
        """Read the script itself."""
        self._read_source(source, path, package="")

    def read_module(self, name: str) -> str:
        """Read what ``python -m name`` runs, and what is imported for it; return its file, or ""."""
        origin = self._read_module(name)
        if not origin:
            self.needs_only_python = False
        return origin

    def _read_module(self, name: str) -> str:
        package, _, _ = name.rpartition(".")
        if package and not self._follow(Import(package, ())):
            return ""
        origin = _origin(name) or _origin(name + ".__main__")
        if not origin.endswith(".py"):
            return ""
        if os.path.basename(origin) == "__init__.py":
            if not self._follow(Import(name, ())):
                return ""
            origin = os.path.join(os.path.dirname(origin), "__main__.py")
            package = name
        try:
            with open(origin, "rb") as file:
                source = file.read()
        except OSError:
            return ""
        self._read_source(source, origin, package)
        return origin

    def _read_source(self, source: bytes, path: str, package: str) -> bool:
        """Read one file; return whether all of it is leading."""
        try:
            tree, _ = compile_quietly(source, path, _ONLY_AST)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.needs_only_python = False
            return self._stop(path, 1, ())
        if self.needs_only_python:
            self.needs_only_python = all(
                is_standard(name.partition(".")[0]) for name in _all_imports(tree)
            )
        for number, statement in enumerate(tree.body):
            if isinstance(statement, (_ast.Import, _ast.ImportFrom)):
                for wanted in _imports(statement, package):
                    if not self._follow(wanted):
                        return self._stop(path, statement.lineno, tree.body[number + 1 :])
            elif not _is_harmless(statement):
                # What it does may matter to all that the script imports after it.
                return self._stop(path, statement.lineno, tree.body[number:])
        return True

    def _stop(self, path: str, line: int, rest: Sequence[Any]) -> bool:
        self.stopped_at = self.stopped_at or f"{path}:{line}"
        self.imports_follow = self.imports_follow or any(map(_imports_something, rest))
        return False

    def _follow(self, wanted: Import) -> bool:
        """Note an import, or read what it would run; return whether to go on."""
        if not wanted.name:
            return False
        top = wanted.name.partition(".")[0]
        if is_builtin_or_installed(top):
            self.found.append(wanted)
            return True
        return self._read_own(wanted)

    def _read_own(self, wanted: Import) -> bool:
        """Read a module of the user's, its packages first, and submodules that are asked for."""
        names = wanted.name.split(".")
        modules = [".".join(names[: n + 1]) for n in range(len(names))]
        modules += [f"{wanted.name}.{name}" for name in wanted.names if name != "*"]
        for number, module in enumerate(modules):
            origin = _origin(module)
            if number >= len(names) and not origin:
                continue  # a name in the module, no module
            if not origin.endswith(".py"):
                return False
            if module in self._read:
                continue
            self._read.add(module)
            is_package = os.path.basename(origin) == "__init__.py"
            package = module if is_package else module.rpartition(".")[0]
            try:
                with open(origin, "rb") as file:
                    source = file.read()
            except OSError:
                return False
            if not self._read_source(source, origin, package):
                return False
        return True


def is_builtin_or_installed(name: str) -> bool:
    """Tell whether a top-level module comes with Python or was installed."""
    if name in sys.builtin_module_names:
        return True
    folder = _folder_of(name)
    if folder is None:
        return False
    return folder == "" or is_installed(folder)


def is_standard(name: str) -> bool:
    """Tell whether a top-level module comes with Python."""
    if not name:
        return False
    if name in sys.builtin_module_names:
        return True
    folder = _folder_of(name)
    if folder is None:
        return False
    inside = (folder + os.sep).startswith(_library() + os.sep)
    return folder == "" or (inside and not any(part in folder for part in _INSTALLED))


def is_installed(folder: str) -> bool:
    """Tell whether ``folder`` belongs to Python or to what pip and its like have installed."""
    parts = folder.split(os.sep)
    return any(part in parts for part in _INSTALLED) or (folder + os.sep).startswith(
        _library() + os.sep
    )


def _library() -> str:
    return os.path.dirname(os.__file__)


def _folder_of(name: str) -> str | None:
    """Return where a top-level module comes from, "" if it is part of Python; None: nowhere."""
    spec = _spec(name, None)
    if spec is None:
        return None
    if spec.origin in ("built-in", "frozen"):
        return ""
    if spec.has_location and spec.origin:
        return os.path.dirname(os.path.abspath(str(spec.origin)))
    for location in spec.submodule_search_locations or ():
        return str(location)
    return None


def _origin(name: str) -> str:
    """Return the file of a module of the user's; "" if there is none. Imports nothing."""
    path: Any = None
    names = name.split(".")
    for number in range(len(names)):
        spec = _spec(".".join(names[: number + 1]), path)
        if spec is None:
            return ""
        path = spec.submodule_search_locations
        if path is None and number < len(names) - 1:
            return ""
    return spec.origin if spec.has_location and spec.origin else ""


def _spec(name: str, path: Any) -> Any:  # noqa: ANN401 - importlib's own objects
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            spec = None if find_spec is None else find_spec(name, path)
        except Exception:  # noqa: BLE001 - any finder's; a nested folder without __init__.py: KeyError
            return None
        if spec is not None:
            return spec
    return None


def _imports(statement: Any, package: str) -> Iterator[Import]:  # noqa: ANN401 - a node of _ast
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


def _all_imports(tree: Any) -> Iterator[str]:  # noqa: ANN401 - a node of _ast
    """Yield the modules that any statement of a file imports, "" for one of its own package."""
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


def _imports_something(statement: Any) -> bool:  # noqa: ANN401 - a node of _ast
    """Tell whether a statement imports, or one within it that runs with it."""
    if isinstance(statement, (_ast.Import, _ast.ImportFrom)):
        return True
    outer = (_ast.If, _ast.Try, _ast.ExceptHandler, _ast.With)
    return isinstance(statement, outer) and any(map(_imports_something, _children(statement)))


def _is_harmless(statement: Any) -> bool:  # noqa: ANN401 - a node of _ast
    """Tell whether a statement only gives a name to a constant, a function or a class."""
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
        # A decorator is called, and may be anything. What is left of the arguments are names and
        # annotations.
        defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
        runs_nothing = all(_is_constant(value) for value in defaults)
        return (
            runs_nothing
            and not statement.decorator_list
            and not any(map(_has_calls, filter(None, (statement.args, statement.returns))))
        )
    if isinstance(statement, _ast.ClassDef):
        # A base class may have __init_subclass__ or a metaclass.
        heads = [*statement.decorator_list, *statement.bases, *statement.keywords]
        return not heads and all(_is_harmless(part) for part in statement.body)
    if isinstance(statement, _ast.If):
        # What only type checkers see.
        test = statement.test
        name = getattr(test, "id", None) or getattr(test, "attr", None)
        return name == "TYPE_CHECKING" and not statement.orelse
    return False


def _is_constant(node: Any) -> bool:  # noqa: ANN401 - a node of _ast
    if isinstance(node, _ast.Constant):
        return True
    return isinstance(node, _LITERALS) and all(
        _is_constant(part)
        for part in _children(node)
        if not isinstance(part, (_ast.expr_context, _ast.unaryop, _ast.operator))
    )


def _has_calls(node: Any) -> bool:  # noqa: ANN401 - a node of _ast
    return isinstance(node, _ast.Call) or any(map(_has_calls, _children(node)))


def _children(node: Any) -> Iterator[Any]:  # noqa: ANN401 - nodes of _ast
    for field in node._fields or ():
        value = getattr(node, field, None)
        if isinstance(value, _ast.AST):
            yield value
        elif isinstance(value, list):
            for part in value:
                if isinstance(part, _ast.AST):
                    yield part
