"""The files that this process has imported, and what they were like then."""

from __future__ import annotations

import os
import sys

from .other_processes import text_of


def stamps_of_modules() -> dict[str, tuple[int, int]]:
    """Return time and size of each file that has been imported; the script is read for each job."""
    modules = {name: module for name, module in sys.modules.items() if name != "__main__"}
    files = {getattr(module, "__file__", None) for module in modules.values()}
    # An installation changes these folders, and may bring a .pth file or another shared library.
    packages = {path for path in sys.path if path.endswith("-packages")}
    paths = {path for path in files if isinstance(path, str)} | packages | _mapped_files()
    return {path: stamp_of(path) for path in paths}


def _mapped_files() -> set[str]:
    """Return the files whose pages this process has: the interpreter and shared libraries."""
    lines = text_of("/proc/self/maps").splitlines()
    return {line[line.index("/") :] for line in lines if "/" in line and "(deleted)" not in line}


def stamp_of(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
