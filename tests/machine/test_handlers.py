"""What the readers may catch: nothing wider than a file that can't be read and a text that is none."""

import ast
from pathlib import Path

import pytest

MACHINE = Path(__file__).parents[2] / "launcher/machine"
NARROW = {"OSError", "ValueError", "ProcessLookupError", "UnicodeDecodeError"}
FILES = sorted(MACHINE.glob("*.py"))


def caught(file: Path) -> list[str]:
    """Return what each handler of a file catches, and what each ``suppress`` does."""
    found: list[ast.expr | None] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ExceptHandler):
            found += node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            found += node.args
    return ["everything" if one is None else ast.unparse(one) for one in found]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_handler_hides_a_mistake_of_ours(file: Path) -> None:
    """NVML's own error is as narrow: it is caught where NVML is asked, in the child."""
    own = {"pynvml.NVMLError", "self._pynvml.NVMLError"} if file.stem == "nvml" else set()

    assert set(caught(file)) <= NARROW | own


def test_the_check_sees_handlers() -> None:
    """Or it would pass for nothing."""
    assert {name for file in FILES for name in caught(file)} >= {"OSError", "ValueError"}
