"""Finds what a script does before it imports torch, by reading it in the order of its execution.

Nothing is imported or run for that. Only the names of installed packages matter, but the user's own modules,
beside the script or on PYTHONPATH, are read too. So are the user's functions where they are called, and both
branches of an ``if``. A worker checks what the text does not show when it imports torch
(``preloaded_torch.py``), so a wrong guess costs time, but never changes a result.
"""

from __future__ import annotations

import _ast
import os
import time

from ..script import compile_quietly
from .module_files import file_of, is_builtin_or_installed, is_stdlib, requires
from .packages import (
    ALSO_IMPORTS,
    ENDS_PRELOADING,
    FORK_SAFE,
    LEFT_TO_WORKERS,
    NOT_LISTED,
    SLOW_TO_IMPORT,
    Import,
)
from .torch_variables import TORCH, torch_reads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    Setting = tuple[str, str, bool]
    """A variable that torch reads, the constant to which it is set, and whether only if it is unset."""

SECONDS_TO_READ = 2.0
"""CPU time: enough for some 40,000 lines."""

MAX_FILE = 4_000_000
"""Bytes: a larger file contains data."""

MAX_DEPTH = 20
"""Nested calls and blocks; deeper calls are not followed."""

DIFFERS_AFTER_TORCH = {
    **dict.fromkeys(("dictConfig", "fileConfig", "setLoggerClass"), "sets up logging"),
    **dict.fromkeys(("sched_setaffinity", "cpu_affinity"), "chooses CPUs"),
    **dict.fromkeys(("CDLL", "LoadLibrary", "setdlopenflags"), "loads libraries"),
    **dict.fromkeys(("putenv", "unsetenv"), "sets a variable"),
}
"""Names of functions whose effect is different once torch is imported."""

_ONLY_AST = 0x400
"""PyCF_ONLY_AST (Include/cpython/compile.h): ``ast.parse`` without the module ``ast``."""

_IMPORTS = (_ast.Import, _ast.ImportFrom)
_FUNCTIONS = (_ast.FunctionDef, _ast.AsyncFunctionDef)
_CLAUSES = tuple(
    getattr(_ast, name) for name in ("excepthandler", "match_case") if hasattr(_ast, name)
)
_UNCONDITIONAL_BLOCKS = tuple(
    getattr(_ast, name)
    for name in ("With", "AsyncWith", "ClassDef", "Try", "TryStar")
    if hasattr(_ast, name)
)
_TRIES = tuple(getattr(_ast, name) for name in ("Try", "TryStar") if hasattr(_ast, name))
_ENVIRONMENTS = ("os.environ", "os.environb", "environ", "environb")
_STREAMS = ("sys.stdout", "sys.stderr")


class SourceFile:
    """A parsed file, and the package in which its relative imports are resolved."""

    def __init__(self, tree: Any, path: str, package: str, *, is_main: bool) -> None:
        self.tree = tree
        self.path = path
        self.package = package
        self.is_main = is_main

    def imports(self, node: Any) -> Iterator[Import]:
        """Yield the imports in a node and below it."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if isinstance(node, _IMPORTS):
                yield from imports_of(node, self.package)
            elif is_for_type_checkers(node):
                waiting.extend(node.orelse)
            else:
                waiting.extend(each for each in children(node) if not isinstance(each, _ast.expr))


class _WalkDone(Exception):
    """The rest of the script does not matter."""


class ScriptWalk:
    """Walks through a script and the user's modules, to the import of torch or to the end.

    A *side effect* is a statement that may change what later imports do: nearly every call.
    """

    def __init__(self) -> None:
        self.preloadable: list[Import] = []
        """The imports before the first side effect that may be made before the fork, in order."""
        self.left_to_workers: list[tuple[str, str]] = []
        """The other imports before the first side effect, each with the reason."""
        self.first_side_effect: str | None = None
        """Its line, such as ``train.py:12``."""
        self.imports_torch = False
        """Whether torch is imported after the first side effect."""
        self.obstacle: str | None = None
        """What the script does before that import, and where, if its effect differs after torch."""
        self.settings: list[Setting] = []
        """Variables set before that import."""
        self.slow_after_side_effect: list[str] = []
        """Slow packages, except torch, that are imported after the first side effect."""
        self.sources: list[SourceFile] = []
        """All files that were read, including the script."""
        self.unread: str | None = None
        """Why not all files could be read."""
        self._reason_to_leave: str | None = None
        """It is reported once the script imports anything after the first side effect."""
        self._functions: dict[str, list[tuple[Any, SourceFile]]] = {}
        """By name; a class stands for its ``__init__``."""
        self._called: set[int] = set()
        self._modules: set[str] = set()
        self._own_package = ""
        self._source = SourceFile(None, "", "", is_main=False)
        self._depth = 0
        """Number of blocks and functions around that may not run."""
        self._tries = 0
        """Number of ``try`` statements around."""
        self._began = time.process_time()

    def read_script(self, source: bytes, path: str) -> None:
        self._walk(lambda: self._run(source, path, "", is_main=True))

    def read_module(self, name: str) -> None:
        """Read what ``python -m name`` runs."""
        # It may be installed.
        self._own_package = name.partition(".")[0]
        self._walk(lambda: self._run_module(name))

    def read_remaining_modules(self) -> None:
        """Parse the user's modules that are imported anywhere, also in functions that are not called."""
        for source in self.sources:
            for wanted in source.imports(source.tree):
                for module, file in self._new_modules_of(wanted):
                    self._parse(_read(file), file, package_of(module, file))

    @property
    def main_file(self) -> str:
        """The file that is run; "" if it was not read."""
        return next((source.path for source in self.sources if source.is_main), "")

    @property
    def imports_only_stdlib(self) -> bool:
        """Whether all imports anywhere in the script are from the standard library."""
        wanted = (each for source in self.sources for each in source.imports(source.tree))
        only_stdlib = all(is_stdlib(each.package) for each in wanted)
        return only_stdlib and bool(self.main_file) and not self.unread

    # Modules.

    def _walk(self, walk: Callable[[], None]) -> None:
        try:
            walk()
            if not self._preloads_torch() and file_of(TORCH) and self._has_torch_anywhere():
                self.imports_torch = True
        except _WalkDone:
            pass
        except RecursionError:
            self.unread = f"{os.path.basename(self.main_file)} is nested too deeply"
            self._note_side_effect(None)

    def _has_torch_anywhere(self) -> bool:
        """Tell whether a function imports torch that a library may call, as in ``fire.Fire(main)``."""
        self.read_remaining_modules()
        wanted = (each for source in self.sources for each in source.imports(source.tree))
        return any(
            is_builtin_or_installed(package) and (package == TORCH or requires(package, TORCH))
            for package in {each.package for each in wanted}
        )

    def _run_module(self, name: str) -> None:
        package = name.rpartition(".")[0]
        file = file_of(name) or file_of(name + ".__main__") or ""
        if os.path.basename(file) == "__init__.py":
            package, file = name, os.path.join(os.path.dirname(file), "__main__.py")
        if package:
            self._run_own(Import(package))
        self._run(_read(file), file, package, is_main=True)

    def _run_own(self, wanted: Import) -> None:
        for module, file in self._new_modules_of(wanted):
            self._run(_read(file), file, package_of(module, file))

    def _new_modules_of(self, wanted: Import) -> Iterator[tuple[str, str]]:
        top = wanted.package
        if not top or (is_builtin_or_installed(top) and top != self._own_package):
            return
        for module in modules_of(wanted):
            file = file_of(module)
            if file and module not in self._modules:
                self._modules.add(module)
                yield module, file

    def _run(self, source: bytes | None, path: str, package: str, *, is_main: bool = False) -> None:
        before, self._source = self._source, SourceFile(None, path, package, is_main=is_main)
        parsed = self._parse(source, path, package, is_main=is_main)
        if parsed is None:
            self._note_side_effect(None)
        else:
            self._source = parsed
            self._note_functions(parsed)
            self._block(parsed.tree.body)
        self._source = before

    def _parse(
        self, source: bytes | None, path: str, package: str, *, is_main: bool = False
    ) -> SourceFile | None:
        """Add a file to ``sources``, and return it; None: it is not Python, or there is no time left."""
        if time.process_time() - self._began > SECONDS_TO_READ:
            self.unread = self.unread or f"to read all of it takes more than {SECONDS_TO_READ:g} s"
        elif source is not None and len(source) <= MAX_FILE and (is_main or path.endswith(".py")):
            try:
                tree, _ = compile_quietly(source, path, _ONLY_AST)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass
            else:
                self.sources.append(SourceFile(tree, path, package, is_main=is_main))
                return self.sources[-1]
        self.unread = self.unread or f"{os.path.basename(path)} can't be read"
        return None

    def _note_functions(self, source: SourceFile) -> None:
        for node in below(source.tree):
            if isinstance(node, _FUNCTIONS):
                self._functions.setdefault(node.name, []).append((node, source))
            elif isinstance(node, _ast.ClassDef):
                inits = [each for each in node.body if getattr(each, "name", "") == "__init__"]
                self._functions.setdefault(node.name, []).extend((each, source) for each in inits)

    # Statements.

    def _block(self, statements: Iterable[Any]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: Any) -> None:
        if isinstance(node, _IMPORTS):
            for wanted in imports_of(node, self._source.package):
                self._import(wanted, node)
        elif isinstance(node, _FUNCTIONS):
            self._expressions([*node.decorator_list, node.args, node.returns])
            if node.decorator_list:
                self._note_side_effect(node)
        elif is_for_type_checkers(node):
            self._block(node.orelse)
        elif isinstance(node, _ast.If) and _is_main_guard(node.test):
            self._block(node.body if self._source.is_main else node.orelse)
        else:
            self._children(node)

    def _children(self, node: Any) -> None:
        depth, is_try = self._depth, isinstance(node, _TRIES)
        self._tries += is_try
        for child in children(node):
            if isinstance(child, (_ast.stmt, *_CLAUSES)):
                is_statement = isinstance(child, _ast.stmt)
                may_not_run = not (is_statement and isinstance(node, _UNCONDITIONAL_BLOCKS))
                self._depth += may_not_run
                if is_statement:
                    self._statement(child)
                else:
                    self._children(child)
                self._depth -= may_not_run
                if is_try and not isinstance(child, _IMPORTS):
                    self._may_have_raised()
            else:
                self._expressions([child])
        if is_try:
            self._tries, self._depth = self._tries - 1, depth
        value = node.value if isinstance(node, _ast.Assign) else None
        for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
            if isinstance(target, _ast.Subscript) and dotted_name(target.value) in _ENVIRONMENTS:
                self._set_variable(index_of(target), value, node)
        if isinstance(node, _ast.ClassDef) and node.decorator_list:
            self._note_side_effect(node)
        # It may change an object in place, as "path += [...]" does, but no number or text. The list
        # __all__ is the module's own.
        if (
            isinstance(node, _ast.AugAssign)
            and not isinstance(node.value, _ast.Constant)
            and dotted_name(node.target) != "__all__"
        ):
            self._note_side_effect(node)

    def _may_have_raised(self) -> None:
        """Note that the rest of the ``try`` around, if there is one, may not run."""
        # After a side effect, nothing is preloaded, and sys.path may have other modules.
        if self._tries and not self.first_side_effect:
            self._depth += 1

    def _expressions(self, expressions: Iterable[Any]) -> None:
        """Find calls in expressions, and assignments to anything but names."""
        waiting = [each for each in expressions if each is not None]
        found = []
        while waiting:
            node = waiting.pop()
            if not isinstance(node, _ast.Lambda):
                found.append(node)
                waiting.extend(children(node))
        # In the order of evaluation: arguments before their call.
        for node in reversed(found):
            if isinstance(node, _ast.Call):
                self._note_side_effect(node)
                self._call(node)
            elif dotted_name(node) == "sys.modules":
                # The script may look for torch there.
                self._note_side_effect(node)
            elif isinstance(node, (_ast.Subscript, _ast.Attribute)) and not _is_read(node):
                self._note_side_effect(node)
                if dotted_name(node) in _STREAMS:
                    self._set_obstacle(node, f"replaces {dotted_name(node)}")

    def _note_side_effect(self, node: Any) -> None:
        if not self.first_side_effect:
            self.first_side_effect = self._line_of(node)
            self._reason_to_leave = f"what is imported from {self.first_side_effect} on"

    def _line_of(self, node: Any) -> str:
        return f"{os.path.basename(self._source.path)}:{getattr(node, 'lineno', 1)}"

    # Imports.

    def _import(self, wanted: Import, node: Any) -> None:
        if self._reason_to_leave:
            self.left_to_workers.append((self._reason_to_leave, "that line may have side effects"))
            self._reason_to_leave = None
        if self.first_side_effect and self._preloads_torch():
            raise _WalkDone
        package = wanted.package
        if package == self._own_package or not is_builtin_or_installed(package):
            self._run_own(wanted)
            if not file_of(wanted.name):
                self._may_have_raised()
        elif is_stdlib(package):
            self._preload([wanted])
        elif package == TORCH:
            self._import_torch(wanted)
        elif package in ENDS_PRELOADING:
            why = ENDS_PRELOADING[package]
            if not self.first_side_effect:
                self.left_to_workers.append((f"{package} and what is imported after it", why))
            self.first_side_effect = self.first_side_effect or self._line_of(node)
            self._set_obstacle(node, f"imports {package} ({why})")
        else:
            self._import_installed(wanted, package, node)

    def _import_installed(self, wanted: Import, package: str, node: Any) -> None:
        if package in FORK_SAFE:
            self._preload([wanted])
            if self.first_side_effect and package in SLOW_TO_IMPORT:
                self.slow_after_side_effect.append(package)
        elif not self.first_side_effect and package in LEFT_TO_WORKERS:
            self.left_to_workers.append((wanted.name, LEFT_TO_WORKERS[package]))
            self._preload(each for each in ALSO_IMPORTS.get(package, ()) if file_of(each.name))
        elif not self.first_side_effect:
            self.left_to_workers.append((f"{package} and what is imported after it", NOT_LISTED))
            self.first_side_effect = self._line_of(node)
        if not self._preloads_torch() and requires(package, TORCH):
            self._import_torch(Import(TORCH))

    def _preload(self, imports: Iterable[Import]) -> None:
        if not self.first_side_effect and not self._depth:
            self.preloadable.extend(imports)

    def _import_torch(self, wanted: Import) -> None:
        if not self.first_side_effect and not self._depth:
            self.preloadable.append(wanted)
        elif file_of(TORCH):
            self.imports_torch = True
            raise _WalkDone

    def _preloads_torch(self) -> bool:
        return any(each.package == TORCH for each in self.preloadable)

    # Statements before the import of torch whose effect would differ after it.

    def _set_obstacle(self, node: Any, what: str) -> None:
        line = self._line_of(node)
        self.obstacle = self.obstacle or f"{line} {what} before {TORCH} is imported"

    def _call(self, node: Any) -> None:
        name, owner = last_name(node.func), dotted_name(getattr(node.func, "value", None))
        if owner in _ENVIRONMENTS:
            self._call_environ(name, node)
        elif name in DIFFERS_AFTER_TORCH:
            self._set_obstacle(node, f"{DIFFERS_AFTER_TORCH[name]} ({name})")
        elif not owner or not is_builtin_or_installed(owner.partition(".")[0]):
            for function, source in self._functions.get(name, ()):
                if id(function) not in self._called and self._depth < MAX_DEPTH:
                    self._called.add(id(function))
                    before, self._source = self._source, source
                    self._depth += 1
                    self._block(function.body)
                    self._depth -= 1
                    self._source = before

    def _call_environ(self, method: str, node: Any) -> None:
        if method == "setdefault" and len(node.args) > 1:
            self._set_variable(node.args[0], node.args[1], node, only_if_unset=True)
        elif method == "pop" and node.args:
            self._set_variable(node.args[0], None, node)
        elif method == "update":
            for each in node.args:
                for key, value in zip(getattr(each, "keys", ()), getattr(each, "values", ())):
                    self._set_variable(key, value, node)
            for each in node.keywords:
                self._set_variable(_ast.Constant(value=each.arg), each.value, node)

    def _set_variable(
        self, name: Any, value: Any, node: Any, *, only_if_unset: bool = False
    ) -> None:
        """Note that a variable is set; if its name is not a constant, the worker's check notices it."""
        variable = constant_text(name)
        if not torch_reads(variable):
            return
        constant = constant_text(value)
        if constant and not self._depth:
            self.settings.append((variable, constant, only_if_unset))
        else:
            self._set_obstacle(node, f"sets {variable}")


def imports_of(statement: Any, package: str) -> Iterator[Import]:
    """Yield what an import statement imports; a relative import is resolved in ``package``."""
    if isinstance(statement, _ast.Import):
        for alias in statement.names:
            yield Import(alias.name)
        return
    if statement.module == "__future__":
        return
    names = tuple(alias.name for alias in statement.names)
    if not statement.level:
        yield Import(statement.module, names)
        return
    base = package.split(".") if package else []
    base = base[: len(base) - statement.level + 1]
    # "from . import x" outside a package fails in the worker, as it should.
    whole = ".".join([*base, *([statement.module] if statement.module else [])])
    yield Import(whole if base else "", names)


def modules_of(wanted: Import) -> Iterator[str]:
    """Yield the modules that an import runs, packages first, then names that may be submodules."""
    names = wanted.name.split(".")
    for number in range(len(names)):
        yield ".".join(names[: number + 1])
    for name in wanted.names:
        if name != "*":
            yield f"{wanted.name}.{name}"


def package_of(module: str, file: str) -> str:
    """Return the package in which the relative imports of a module are resolved."""
    return module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]


def _read(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return None


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below a node."""
    for field in node._fields or ():
        value = getattr(node, field, None)
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, _ast.AST):
                yield child


def below(node: Any) -> Iterator[Any]:
    """Yield a node and all nodes below it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))


def last_name(node: Any) -> str:
    """Return "c" for the name ``c`` or the attribute ``a.b.c``; "" for another node."""
    return getattr(node, "attr", None) or getattr(node, "id", None) or ""


def dotted_name(node: Any) -> str:
    """Return "a.b.c" for the attribute ``a.b.c``; "" if the expression does not begin with a name."""
    names = []
    while isinstance(node, _ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, _ast.Name) else ""


def index_of(subscript: Any) -> Any:
    index = subscript.slice
    # Python 3.8 has an Index node around it.
    return getattr(index, "value", index) if type(index).__name__ == "Index" else index


def constant_text(node: Any) -> str:
    """Return the value of a string or bytes constant; "" for another node."""
    value = getattr(node, "value", None) if isinstance(node, _ast.Constant) else None
    return os.fsdecode(value) if isinstance(value, (str, bytes)) else ""


def _is_read(node: Any) -> bool:
    return isinstance(node.ctx, _ast.Load)


def is_for_type_checkers(node: Any) -> bool:
    return isinstance(node, _ast.If) and last_name(node.test) == "TYPE_CHECKING"


def _is_main_guard(test: Any) -> bool:
    """Tell whether this is ``__name__ == "__main__"``."""
    return (
        isinstance(test, _ast.Compare)
        and last_name(test.left) == "__name__"
        and isinstance(test.ops[0], _ast.Eq)
        and constant_text(test.comparators[0]) == "__main__"
    )
