"""Code that another process runs, with names of the product."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def imports(*names: Callable[..., object]) -> str:
    """Return the lines that import these functions and classes, wherever the product has them."""
    return "".join(f"from {one.__module__} import {one.__name__}\n" for one in names)


def output_of(code: str, *command: str | Path, folder: Path | None = None, **variables: str) -> str:
    """Return what a process prints that runs this code; it must exit with 0, and print no error.

    Args:
        code: of Python.
        command: an interpreter and its options; by default the tests' own.
        folder: where to run it.
        variables: more of them.

    """
    done = subprocess.run(
        [*(command or [sys.executable]), "-c", code],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout
