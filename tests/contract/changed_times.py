"""The command with another value of one of its times, so that a test need not wait."""

import sys
from pathlib import Path
from types import ModuleType

from clusterrun.cli.entry import main

from tests.imports import imports


def command_with(folder: Path, module: ModuleType, name: str, seconds: float) -> str:
    """Write a program that runs the command with another value of a constant; return its path."""
    assert isinstance(getattr(module, name), float)
    program = folder / "bin" / "clusterrun"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\n"
        f"import {module.__name__} as module\n"
        f"{imports(main)}"
        f"module.{name} = {seconds}\n"
        "main()\n"
    )
    program.chmod(0o755)
    return str(program)
