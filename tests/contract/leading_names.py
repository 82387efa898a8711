"""The names of the modules that a script imports first, for ``--preload MODULE,...``."""

import ast
from textwrap import dedent


def leading_names(script: str) -> list[str]:
    """Return the modules that are imported before the first other statement, in their order."""
    names: list[str] = []
    for statement in ast.parse(dedent(script)).body:
        if isinstance(statement, ast.Import):
            names += [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            names += [statement.module] if statement.module and not statement.level else []
        elif not _only_defines(statement):
            break
    return [name for name in names if name != "__future__"]


def _only_defines(statement: ast.stmt) -> bool:
    if any(isinstance(node, ast.Call) for node in ast.walk(statement)):
        return isinstance(statement, ast.FunctionDef | ast.ClassDef)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) for target in statement.targets)
    return isinstance(statement, ast.Expr | ast.FunctionDef | ast.ClassDef)
