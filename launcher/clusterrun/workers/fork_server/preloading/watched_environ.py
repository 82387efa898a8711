"""``os.environ`` while modules are preloaded: it reports who uses a variable that workers get their own."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import Any

_Environ: Any = type(os.environ)

ALL = "all variables"

LOOK_FOR_THEIR_OWN = frozenset({"dask", "donfig", "fsspec", "networkx", "numba", "tqdm"})
"""Packages that go through all variables for those that begin with their name."""


class WatchedEnviron(_Environ):  # type: ignore[misc]
    """``os.environ`` that calls ``touched`` for each use of a variable that each worker gets its own.

    Another class for the same object, as modules hold that.
    """

    unsettled: Collection[str] = ()
    touched: Callable[[str], None]

    def __getitem__(self, key: str) -> str:
        """Return a variable."""
        _note(key)
        value: str = super().__getitem__(key)
        return value

    def __setitem__(self, key: str, value: str) -> None:
        """Set a variable."""
        _note(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        """Delete a variable."""
        _note(key)
        super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:
        """Return the names of all, among which those of the unsettled ones are missing."""
        if not LOOK_FOR_THEIR_OWN.intersection(
            name.partition(".")[0] for name in modules_being_imported()[:1]
        ):
            WatchedEnviron.touched(ALL)
        names: Iterator[str] = super().__iter__()
        return names


def _note(key: object) -> None:
    name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    if name in WatchedEnviron.unsettled:
        WatchedEnviron.touched(str(name))


def watch(unsettled: Collection[str], touched: Callable[[str], None]) -> None:
    """Have ``touched`` called with the name of a variable that somebody uses."""
    WatchedEnviron.unsettled = frozenset(unsettled)
    WatchedEnviron.touched = staticmethod(touched)
    os.environ.__class__ = WatchedEnviron
    os.environb.__class__ = WatchedEnviron


def stop_watching() -> None:
    """Let everybody use all."""
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
