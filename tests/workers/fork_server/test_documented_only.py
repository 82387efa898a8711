"""The fork server uses nothing that CPython does not document, except what is listed here."""

import ast
from collections.abc import Iterator
from pathlib import Path

from clusterrun.workers import fork_server

FOLDER = Path(str(fork_server.__file__)).parent
SOURCES = sorted(FOLDER.rglob("*.py"))

ALLOWED = {
    "_ast": "what ``ast`` is made of; that costs each start 3 ms",
    "_getframe": "documented, for internal and specialized purposes: finds the module that reads a variable",
    "_run_module_as_main": "what ``python -m`` calls; run_module takes __main__ away at the end",
    "_signal": "what ``signal`` is made of; that costs each start 2 ms",
    "_socket": "what ``socket`` is made of; that costs each start 6 ms",
    "_warnings": "what ``warnings`` is made of; the script may have a module of that name",
}
"""Names, each with the reason. All exist in Python 3.8 to 3.14."""

DOCUMENTED = {"_exit", "_fields"}
"""Documented names of ``os`` and ``ast``."""


def undocumented(source: Path) -> Iterator[str]:
    """Yield the private names of other modules that a file uses."""
    tree = ast.parse(source.read_text())
    own = {
        node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (a.name for a in node.names if a.name.startswith("_"))
            if node.module and node.module.startswith("_") and node.module != "__future__":
                yield node.module
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            is_own = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            if not node.attr.startswith("__") and not is_own and node.attr not in own:
                yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (name for name in ALLOWED if f".{name}(" in node.value)


def test_private_names_are_listed() -> None:
    """All used ones are listed, and all listed ones are used."""
    used = {name for source in SOURCES for name in undocumented(source)}
    used -= DOCUMENTED

    assert used == ALLOWED.keys()
