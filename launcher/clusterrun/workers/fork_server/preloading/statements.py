"""The statements of a script, as trees: which modules they import, and whether they do anything else."""

from __future__ import annotations

import _ast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_LITERALS = (_ast.Tuple, _ast.List, _ast.Set, _ast.Dict, _ast.UnaryOp, _ast.BinOp, _ast.JoinedStr)
_BLOCKS = (_ast.If, _ast.Try, _ast.ExceptHandler, _ast.With)


class Import:
    """One import of a module: ``from NAME import NAMES``, or ``import NAME``; NAME is absolute."""

    def __init__(self, name: str, names: tuple[str, ...]) -> None:
        self.name = name
        self.names = names


def imports_of(statement: Any, package: str) -> Iterator[Import]:  # noqa: ANN401 - a node of _ast
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


def all_imported_modules(tree: Any) -> Iterator[str]:  # noqa: ANN401 - a node of _ast
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


def imports_something(statement: Any) -> bool:  # noqa: ANN401 - a node of _ast
    """Tell whether a statement, or one inside its blocks, is an import."""
    if isinstance(statement, (_ast.Import, _ast.ImportFrom)):
        return True
    return isinstance(statement, _BLOCKS) and any(map(imports_something, _children(statement)))


def only_defines(statement: Any) -> bool:  # noqa: ANN401 - a node of _ast
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
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, _ast.AST):
                yield part
