"""Finds out, without importing a module, whether it belongs to Python, to an installed package, or to the user."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INSTALLED = ("site-packages", "dist-packages")


def is_builtin_or_installed(name: str) -> bool:
    """Tell whether a top-level module comes with Python or was installed."""
    folder = _folder_of(name)
    return folder == "" or (folder is not None and is_installed(folder))


def is_stdlib(name: str) -> bool:
    """Tell whether a top-level module comes with Python."""
    folder = _folder_of(name) if name else None
    return folder == "" or (folder is not None and is_stdlib_path(folder))


def is_stdlib_path(path: str) -> bool:
    """Tell whether a file or a folder comes with Python."""
    return _is_in_library(path) and not any(name in path.split(os.sep) for name in _INSTALLED)


def is_installed(folder: str) -> bool:
    """Tell whether ``folder`` belongs to Python or to an installed package."""
    names = folder.split(os.sep)
    return any(name in names for name in _INSTALLED) or _is_in_library(folder)


def file_of(name: str) -> str | None:
    """Return the file of a module, without importing it."""
    path: list[str] | None = None
    spec: Any = None
    names = name.split(".")
    for number, last in enumerate(names):
        spec = _spec(".".join(names[: number + 1]), path)
        if spec is not None and spec.submodule_search_locations is None:
            path = []
        elif spec is not None:
            path = list(spec.submodule_search_locations)
        else:
            # In a folder without __init__.py, Python's finder needs its package imported.
            path = [
                f for f in (os.path.join(each, last) for each in path or ()) if os.path.isdir(f)
            ]
        if not path and number < len(names) - 1:
            return None
    return spec.origin if spec is not None and spec.has_location else None


def would_find_same(name: str, module: Any, *, without: object) -> bool:
    """Tell whether a new import of a top-level module, without one finder, would find ``module``."""
    spec, own = _spec(name, None, without), getattr(module, "__spec__", None)
    return own is None or (spec is not None and spec.origin == own.origin)


def requires(package: str, other: str) -> bool:
    """Tell whether an installed package depends on ``other``, directly or by one other package."""
    required = _requirements(package)
    return other in required or any(other in _requirements(each) for each in required)


_REQUIRES = b"Requires-Dist: "


def _requirements(package: str) -> set[str]:
    """Return what the METADATA of a package's distribution requires, if both have the same name."""
    folder = _folder_of(package) or ""
    if os.path.basename(folder) == package:
        folder = os.path.dirname(folder)
    try:
        for name in os.listdir(folder) if folder else ():
            distribution, _, kind = name.rpartition(".")
            if kind == "dist-info" and distribution.partition("-")[0].lower() == package.lower():
                with open(os.path.join(folder, name, "METADATA"), "rb") as file:
                    lines = [line[len(_REQUIRES) :] for line in file if line.startswith(_REQUIRES)]
                return {_module_name(line) for line in lines if b"extra" not in line}
    except OSError:
        pass
    return set()


def _module_name(requirement: bytes) -> str:
    """Return ``pytorch_lightning`` for ``pytorch-lightning>=2.0; ...``."""
    text = requirement.decode("ascii", "replace").strip().replace("-", "_")
    end = next((at for at, sign in enumerate(text) if not (sign.isalnum() or sign in "_.")), None)
    return text[:end].lower()


def _is_in_library(folder: str) -> bool:
    return (folder + os.sep).startswith(os.path.dirname(os.__file__) + os.sep)


def _folder_of(name: str) -> str | None:
    """Return the folder of a top-level module, "" for a built-in one; None if it is not found."""
    if name in sys.builtin_module_names:
        return ""
    spec = _spec(name, None)
    if spec is None:
        return None
    if spec.origin in ("built-in", "frozen"):
        return ""
    if spec.has_location and spec.origin:
        return os.path.dirname(os.path.abspath(str(spec.origin)))
    for location in spec.submodule_search_locations or ():
        return str(location)
    return None


def _spec(name: str, path: Any, without: object = None) -> Any:  # importlib's own objects
    for finder in sys.meta_path:
        if finder is without:
            continue
        find_spec = getattr(finder, "find_spec", None)
        try:
            spec = None if find_spec is None else find_spec(name, path)
        except Exception:  # of any finder; KeyError for a nested folder without __init__.py
            return None
        if spec is not None:
            return spec
    return None
