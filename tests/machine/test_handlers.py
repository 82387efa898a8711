"""The readers catch only errors of unreadable files and of damaged texts."""

import ast
import builtins
from pathlib import Path

import pytest

MACHINE = Path(__file__).parents[2] / "launcher/clusterrun/machine"
OTHERS = {
    # In the child that asks NVML; the library's own error for a GPU that is not ours.
    # Neither all GPUs nor all versions of pynvml answer all questions; its answer may be half a one.
    "nvml": {"pynvml.NVMLError", "self.pynvml.NVMLError", "AttributeError", "MsgspecError"},
    # A ValueError in newer versions of msgspec; and what lists in lists raise.
    "capture": {"msgspec.MsgspecError", "RecursionError"},
}
"""Exceptions of libraries that a file may catch, too."""
FILES = sorted(MACHINE.rglob("*.py"))


def caught(file: Path) -> list[str]:
    """Return what each handler of a file catches, and what each ``suppress`` does."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ExceptHandler):
            found += node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            found += node.args
    return ["everything" if one is None else ast.unparse(one) for one in found]


def is_narrow(name: str) -> bool:
    """Return whether the exception is OSError, ValueError, or one of theirs."""
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, (OSError, ValueError))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_handler_hides_a_mistake_of_ours(file: Path) -> None:
    """A handler such as ``except Exception`` is refused."""
    wide = {name for name in caught(file) if not is_narrow(name)}

    assert wide <= OTHERS.get(file.stem, set())


def test_the_check_sees_handlers() -> None:
    """The test above must find handlers."""
    assert not is_narrow("Exception")
    assert not is_narrow("everything")
    assert {name for file in FILES for name in caught(file)} >= {"OSError", "ValueError"}
