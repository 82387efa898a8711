"""What a script does before it imports torch, found by reading it in the order in which it runs.

Nothing is imported or run for that. Of installed packages only the names matter. The user's own modules,
beside the script or on PYTHONPATH, are walked through, and so are own functions where they are called,
and both branches of an ``if``. What the text does not show, a worker checks when it imports torch
(``as_preloaded.py``): a wrong guess costs time, never a result.
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
    SLOW_TO_IMPORT,
    UNKNOWN,
    Import,
)
from .torch_variables import TORCH, torch_reads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

SECONDS_TO_READ = 2.0
"""Of CPU time: enough for some 40,000 lines."""

LARGEST = 4_000_000
"""Bytes of one file that is read: a larger one holds data."""

DEEPEST = 20
"""Of calls that are followed, and of blocks in each other."""

OTHERWISE_AFTER_TORCH = {
    **dict.fromkeys(("dictConfig", "fileConfig", "setLoggerClass"), "sets up logging"),
    **dict.fromkeys(("sched_setaffinity", "cpu_affinity"), "chooses CPUs"),
    **dict.fromkeys(("CDLL", "LoadLibrary", "setdlopenflags"), "loads libraries"),
    **dict.fromkeys(("putenv", "unsetenv"), "sets a variable"),
}
"""By the name of a function: what it does that differs if torch was imported before."""

_ONLY_AST = 0x400
"""PyCF_ONLY_AST (Include/cpython/compile.h): ``ast.parse`` without the module ``ast``."""

_IMPORTS = (_ast.Import, _ast.ImportFrom)
_FUNCTIONS = (_ast.FunctionDef, _ast.AsyncFunctionDef)
_PARTS_OF_A_STATEMENT = tuple(
    getattr(_ast, name) for name in ("excepthandler", "match_case") if hasattr(_ast, name)
)
_RUN_THEIR_BLOCKS = tuple(
    getattr(_ast, name)
    for name in ("With", "AsyncWith", "ClassDef", "Try", "TryStar")
    if hasattr(_ast, name)
)
_ENVIRONMENTS = ("os.environ", "os.environb", "environ", "environb")
_STREAMS = ("sys.stdout", "sys.stderr")


class Text:
    """A file that was read: its syntax, its path, and the package in which its imports are resolved."""

    def __init__(self, tree: Any, path: str, package: str, *, is_main: bool) -> None:
        self.tree = tree
        self.path = path
        self.package = package
        self.is_main = is_main

    def imports(self, node: Any) -> Iterator[Import]:
        """Yield what a node, and all below it, imports."""
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
    """Nothing that comes later matters."""


class ScriptWalk:
    """Walks through a script and the user's own modules, to the import of torch or to the end."""

    def __init__(self) -> None:
        self.found: list[Import] = []
        """What may be imported before the fork, in order: it is imported before the first act."""
        self.left_out: list[tuple[str, str]] = []
        """What is imported before the first act and left to each worker, with the reason."""
        self.first_side_effect = ""
        """The first line that may change what imports do, such as ``train.py:12``; "": there is none."""
        self.imports_torch = False
        """Whether torch is imported after the first act."""
        self.obstacle = ""
        """What stands before that import and differs if torch was imported before it, and where."""
        self.sets: list[tuple[str, str, bool]] = []
        """Variables that torch reads, each with the constant to which it is set before, and whether
        only if it is not set yet."""
        self.slow_after_side_effect: list[str] = []
        """Packages besides torch that take time, and are imported after the first act."""
        self.texts: list[Text] = []
        """All files that were read, the script's own among them."""
        self.unread = ""
        """Why not all of them could be read; "": they could."""
        self._left_after_it = ""
        """What is left out if the script imports anything after the first act."""
        self._functions: dict[str, list[tuple[Any, Text]]] = {}
        """By name; the ``__init__`` of a class by that of the class."""
        self._called: set[int] = set()
        self._modules: set[str] = set()
        self._own_package = ""
        self._text = Text(None, "", "", is_main=False)
        self._blocks = 0
        """How many of the blocks and functions around may not run."""
        self._began = time.process_time()

    def read_script(self, source: bytes, path: str) -> None:
        self._to_its_end(lambda: self._run(source, path, "", is_main=True))

    def read_module(self, name: str) -> None:
        """Read what ``python -m name`` runs."""
        # It may be installed.
        self._own_package = name.partition(".")[0]
        self._to_its_end(lambda: self._run_module(name))

    def read_rest(self) -> None:
        """Read the user's own modules that any statement imports, of what was read and of themselves."""
        for text in self.texts:
            for wanted in text.imports(text.tree):
                for module, file in self._new_modules_of(wanted):
                    self._parse(_source_of(file), file, package_of(module, file))

    @property
    def main(self) -> str:
        """The file that is run; "" if it was not read."""
        return next((text.path for text in self.texts if text.is_main), "")

    @property
    def imports_only_stdlib(self) -> bool:
        """Whether all that the script imports, anywhere in it, comes with Python."""
        wanted = (each for text in self.texts for each in text.imports(text.tree))
        only_python = all(is_stdlib(each.package) for each in wanted)
        return only_python and bool(self.main) and not self.unread

    # Modules.

    def _to_its_end(self, walk: Any) -> None:
        try:
            walk()
            if not self._finds_torch() and file_of(TORCH) and self._has_torch_anywhere():
                self.imports_torch = True
        except _WalkDone:
            pass
        except RecursionError:
            self.unread = f"{os.path.basename(self.main)} is nested too deeply"
            self._act(None)

    def _has_torch_anywhere(self) -> bool:
        """Tell whether a function imports torch that someone else calls, as in ``fire.Fire(main)``."""
        self.read_rest()
        packages = {each.package for text in self.texts for each in text.imports(text.tree)}
        return any(
            is_builtin_or_installed(each) and (each == TORCH or requires(each, TORCH))
            for each in packages
        )

    def _run_module(self, name: str) -> None:
        package = name.rpartition(".")[0]
        file = file_of(name) or file_of(name + ".__main__")
        if os.path.basename(file) == "__init__.py":
            package, file = name, os.path.join(os.path.dirname(file), "__main__.py")
        if package:
            self._run_own(Import(package, ()))
        self._run(_source_of(file), file, package, is_main=True)

    def _run_own(self, wanted: Import) -> None:
        for module, file in self._new_modules_of(wanted):
            self._run(_source_of(file), file, package_of(module, file))

    def _new_modules_of(self, wanted: Import) -> Iterator[tuple[str, str]]:
        top = wanted.package
        if not top or (is_builtin_or_installed(top) and top != self._own_package):
            return
        for module, file in own_modules_of(wanted):
            if file and module not in self._modules:
                self._modules.add(module)
                yield module, file

    def _run(self, source: bytes | None, path: str, package: str, *, is_main: bool = False) -> None:
        before, self._text = self._text, Text(None, path, package, is_main=is_main)
        text = self._parse(source, path, package, is_main=is_main)
        if text is None:
            self._act(None)
        else:
            self._text = text
            self._note_functions(text)
            self._block(text.tree.body)
        self._text = before

    def _parse(
        self, source: bytes | None, path: str, package: str, *, is_main: bool = False
    ) -> Text | None:
        """Note a text, and return it; None: it is not Python, or there is too much."""
        if time.process_time() - self._began > SECONDS_TO_READ:
            self.unread = self.unread or f"to read all of it takes more than {SECONDS_TO_READ:g} s"
        elif (
            source is not None
            and len(source) <= LARGEST
            and path.endswith((".py", *([path] if is_main else [])))
        ):
            try:
                tree, _ = compile_quietly(source, path, _ONLY_AST)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                pass
            else:
                self.texts.append(Text(tree, path, package, is_main=is_main))
                return self.texts[-1]
        self.unread = self.unread or f"{os.path.basename(path)} can't be read"
        return None

    def _note_functions(self, text: Text) -> None:
        for node in below(text.tree):
            if isinstance(node, _FUNCTIONS):
                self._functions.setdefault(node.name, []).append((node, text))
            elif isinstance(node, _ast.ClassDef):
                made_by = [each for each in node.body if getattr(each, "name", "") == "__init__"]
                self._functions.setdefault(node.name, []).extend((each, text) for each in made_by)

    # Statements.

    def _block(self, statements: Iterable[Any]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: Any) -> None:
        if isinstance(node, _IMPORTS):
            for wanted in imports_of(node, self._text.package):
                self._import(wanted, node)
        elif isinstance(node, _FUNCTIONS):
            self._look_at([*node.decorator_list, node.args, node.returns])
            if node.decorator_list:
                self._act(node)
        elif is_for_type_checkers(node):
            self._block(node.orelse)
        elif isinstance(node, _ast.If) and _asks_for_main(node.test):
            self._block(node.body if self._text.is_main else node.orelse)
        else:
            self._parts_of(node)

    def _parts_of(self, node: Any) -> None:
        for part in children(node):
            if isinstance(part, (_ast.stmt, *_PARTS_OF_A_STATEMENT)):
                is_statement = isinstance(part, _ast.stmt)
                may_not_run = not (is_statement and isinstance(node, _RUN_THEIR_BLOCKS))
                self._blocks += may_not_run
                if is_statement:
                    self._statement(part)
                else:
                    self._parts_of(part)
                self._blocks -= may_not_run
            else:
                self._look_at([part])
        value = node.value if isinstance(node, _ast.Assign) else None
        for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
            if isinstance(target, _ast.Subscript) and path_of(target.value) in _ENVIRONMENTS:
                self._set(index_of(target), value, node)
        if isinstance(node, _ast.ClassDef) and node.decorator_list:
            self._act(node)

    def _look_at(self, expressions: Iterable[Any]) -> None:
        """Look for what expressions call, and for what they set besides names."""
        waiting = [each for each in expressions if each is not None]
        found = []
        while waiting:
            node = waiting.pop()
            if not isinstance(node, _ast.Lambda):
                found.append(node)
                waiting.extend(children(node))
        # Parts come before the whole, from left to right: arguments before the call.
        for node in reversed(found):
            if isinstance(node, _ast.Call):
                self._act(node)
                self._call(node)
            elif path_of(node) == "sys.modules":
                # It may look for torch.
                self._act(node)
            elif isinstance(node, (_ast.Subscript, _ast.Attribute)) and not _is_read(node):
                self._act(node)
                if path_of(node) in _STREAMS:
                    self._stop_at(node, f"replaces {path_of(node)}")

    def _act(self, node: Any) -> None:
        """Take note that something happens that may change what later imports do."""
        if not self.first_side_effect:
            self.first_side_effect = self._place_of(node)
            self._left_after_it = f"what is imported from {self.first_side_effect} on"

    def _place_of(self, node: Any) -> str:
        return f"{os.path.basename(self._text.path)}:{getattr(node, 'lineno', 1)}"

    # Imports.

    def _import(self, wanted: Import, node: Any) -> None:
        if self._left_after_it:
            self.left_out.append((self._left_after_it, "that line may do anything"))
            self._left_after_it = ""
        if self.first_side_effect and self._finds_torch():
            raise _WalkDone
        package = wanted.package
        if package == self._own_package or not is_builtin_or_installed(package):
            self._run_own(wanted)
        elif is_stdlib(package):
            self._found([wanted])
        elif package == TORCH:
            self._meet_torch(wanted)
        elif package in ENDS_PRELOADING:
            why = ENDS_PRELOADING[package]
            if not self.first_side_effect:
                self.left_out.append((f"{package} and what is imported after it", why))
            self.first_side_effect = self.first_side_effect or self._place_of(node)
            self._stop_at(node, f"imports {package} ({why})")
        else:
            self._meet(wanted, package, node)

    def _meet(self, wanted: Import, package: str, node: Any) -> None:
        """Note the import of an installed package."""
        if package in FORK_SAFE:
            self._found([wanted])
            if self.first_side_effect and package in SLOW_TO_IMPORT:
                self.slow_after_side_effect.append(package)
        elif not self.first_side_effect:
            why = LEFT_TO_WORKERS.get(package, "")
            if why:
                self.left_out.append((wanted.name, why))
                self._found(each for each in ALSO_IMPORTS.get(package, ()) if file_of(each.name))
            else:
                self.left_out.append((f"{package} and what is imported after it", UNKNOWN))
                self.first_side_effect = self._place_of(node)
        if not self._finds_torch() and requires(package, TORCH):
            self._meet_torch(Import(TORCH, ()))

    def _found(self, imports: Iterable[Import]) -> None:
        if not self.first_side_effect and not self._blocks:
            self.found.extend(imports)

    def _meet_torch(self, wanted: Import) -> None:
        if not self.first_side_effect and not self._blocks:
            self.found.append(wanted)
        elif file_of(TORCH):
            self.imports_torch = True
            raise _WalkDone

    def _finds_torch(self) -> bool:
        return any(each.package == TORCH for each in self.found)

    # What differs if torch is imported before it.

    def _stop_at(self, node: Any, what: str) -> None:
        place = self._place_of(node)
        self.obstacle = self.obstacle or f"{place} {what} before {TORCH} is imported"

    def _call(self, node: Any) -> None:
        name, owner = name_of(node.func), path_of(getattr(node.func, "value", None))
        if owner in _ENVIRONMENTS:
            self._call_of_environ(name, node)
        elif name in OTHERWISE_AFTER_TORCH:
            self._stop_at(node, f"{OTHERWISE_AFTER_TORCH[name]} ({name})")
        elif not owner or not is_builtin_or_installed(owner.partition(".")[0]):
            for function, text in self._functions.get(name, ()):
                if id(function) not in self._called and self._blocks < DEEPEST:
                    self._called.add(id(function))
                    before, self._text = self._text, text
                    self._blocks += 1
                    self._block(function.body)
                    self._blocks -= 1
                    self._text = before

    def _call_of_environ(self, method: str, node: Any) -> None:
        if method == "setdefault" and len(node.args) > 1:
            self._set(node.args[0], node.args[1], node, only_if_unset=True)
        elif method in ("pop", "__delitem__", "__setitem__") and node.args:
            self._set(node.args[0], None, node)
        elif method == "update":
            for each in node.args:
                for key, value in zip(getattr(each, "keys", ()), getattr(each, "values", ())):
                    self._set(key, value, node)
            for each in node.keywords:
                self._set(_ast.Constant(value=each.arg), each.value, node)

    def _set(self, name: Any, value: Any, node: Any, *, only_if_unset: bool = False) -> None:
        """Note that a variable is set; one whose name is not known is left to the check in the worker."""
        variable = text_of_constant(name)
        if not torch_reads(variable):
            return
        constant = text_of_constant(value)
        if constant and not self._blocks:
            self.sets.append((variable, constant, only_if_unset))
        else:
            self._stop_at(node, f"sets {variable}")


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


def own_modules_of(wanted: Import) -> Iterator[tuple[str, str]]:
    """Yield the modules that an import runs, each with its file, "" if there is none: packages first."""
    names = wanted.name.split(".")
    for number in range(len(names)):
        module = ".".join(names[: number + 1])
        yield module, file_of(module)
    for name in wanted.names:
        # Most are names in the module, and no modules.
        if name != "*":
            yield f"{wanted.name}.{name}", file_of(f"{wanted.name}.{name}")


def package_of(module: str, file: str) -> str:
    """Return the package in which the imports of a module are resolved."""
    return module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]


def _source_of(file: str) -> bytes | None:
    try:
        with open(file, "rb") as opened:
            return opened.read()
    except OSError:
        return None


def children(node: Any) -> Iterator[Any]:
    """Yield the nodes directly below one."""
    for field in node._fields or ():
        value = getattr(node, field, None)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, _ast.AST):
                yield part


def below(node: Any) -> Iterator[Any]:
    """Yield a node, and all below it."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children(node))


def name_of(node: Any) -> str:
    """Return the last part of a name or an attribute; "" of another node."""
    return getattr(node, "attr", None) or getattr(node, "id", None) or ""


def path_of(node: Any) -> str:
    """Return "a.b.c" of a name or an attribute; "" of what does not begin with a name."""
    parts = []
    while isinstance(node, _ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, _ast.Name) else ""


def index_of(subscript: Any) -> Any:
    index = subscript.slice
    # Python 3.8 has a node around it.
    return getattr(index, "value", index) if type(index).__name__ == "Index" else index


def text_of_constant(node: Any) -> str:
    """Return the text of a constant; "" of anything else."""
    value = getattr(node, "value", None) if isinstance(node, _ast.Constant) else None
    return os.fsdecode(value) if isinstance(value, (str, bytes)) else ""


def _is_read(node: Any) -> bool:
    return isinstance(node.ctx, _ast.Load)


def is_for_type_checkers(node: Any) -> bool:
    return isinstance(node, _ast.If) and name_of(node.test) == "TYPE_CHECKING"


def _asks_for_main(test: Any) -> bool:
    """Tell whether this is ``__name__ == "__main__"``."""
    return (
        isinstance(test, _ast.Compare)
        and name_of(test.left) == "__name__"
        and isinstance(test.ops[0], _ast.Eq)
        and text_of_constant(test.comparators[0]) == "__main__"
    )
