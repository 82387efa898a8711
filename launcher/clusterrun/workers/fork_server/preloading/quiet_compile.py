"""Compiles a file and returns the compiler's warnings, which the worker prints."""

from __future__ import annotations

from ..scripts.hidden_modules import hidden_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any
    from warnings import WarningMessage


def compile_quietly(source: bytes, path: str, flags: int = 0) -> tuple[Any, list[WarningMessage]]:
    """Compile a file.

    Args:
        source: its text.
        path: its name.
        flags: as ``compile`` takes them.

    Returns:
        The code, or with PyCF_ONLY_AST the tree, and the warnings.

    Raises:
        SyntaxError: it is no Python.
        ValueError: it has a zero byte.
        RecursionError: it is nested too deeply.
        MemoryError: the same.

    """
    with hidden_imports():
        import warnings

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            code = compile(source, path, "exec", flags, dont_inherit=True)
    return code, list(caught or ())
