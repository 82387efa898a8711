"""``os.environ`` while modules are imported: it notices which of them use a variable of the workers."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

_Environ: Any = type(os.environ)

ALL = "all variables"

READ_ONLY_THEIR_OWN = frozenset({"dask", "donfig", "fsspec", "networkx", "numba", "tqdm"})
"""Packages that go through all variables for those that begin with their name."""


class WatchedEnviron(_Environ):  # type: ignore[misc]
    """Calls ``report`` with the name of each of the ``watched`` variables that is used.

    It is set as the class of the ``os.environ`` that exists, as modules hold that object.
    """

    watched: Collection[str] = ()
    report: Callable[[str], None]

    def __getitem__(self, key: str) -> str:
        _check(key)
        value: str = super().__getitem__(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        _check(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        _check(key)
        super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:
        """Return the names of all variables; those of the watched ones are not set yet."""
        packages = {name.partition(".")[0] for name in modules_being_imported()[:1]}
        if not READ_ONLY_THEIR_OWN & packages:
            WatchedEnviron.report(ALL)
        names: Iterator[str] = super().__iter__()
        return names


def _check(key: object) -> None:
    name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    if name in WatchedEnviron.watched:
        WatchedEnviron.report(str(name))


def watch(names: Collection[str], report: Callable[[str], None]) -> None:
    """Have ``report`` called with the name of a variable that is used, or ``ALL``."""
    WatchedEnviron.watched = frozenset(names)
    WatchedEnviron.report = staticmethod(report)
    os.environ.__class__ = WatchedEnviron
    os.environb.__class__ = WatchedEnviron


def stop_watching() -> None:
    os.environ.__class__ = _Environ
    os.environb.__class__ = _Environ


def modules_being_imported() -> list[str]:
    """Return the modules on the stack, the one that is being executed first."""
    names = []
    frame = sys._getframe(1)  # noqa: SLF001 - documented, though for internal and special purposes
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            names.append(frame.f_globals.get("__name__", "?"))
        frame = frame.f_back  # type: ignore[assignment]
    return [name for name in names if name != "__main__" and not name.startswith("fork_server")]
