"""Hides modules that only the fork server has imported from the job's own code."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType


_search_path = sys.path[:]
"""Of the job's own code."""


def search_the_users_folders_last() -> None:
    """Import the server's modules from the standard library even if PYTHONPATH has others of their names."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    try:
        users = {os.path.abspath(entry) for entry in path}
        sys.path.sort(key=lambda entry: os.path.abspath(entry) in users)
    except FileNotFoundError:  # the current folder is deleted, and an entry is relative
        pass


def hide_all_but(initial: Collection[str]) -> None:
    """Remove all modules except the ``initial`` ones from sys.modules; the server's code keeps using them.

    So a script imports its own ``select.py``, as it does in a fresh interpreter.
    """
    sys.path[:] = _search_path
    for name in sys.modules.keys() - initial:
        del sys.modules[name]


class hidden_imports:  # noqa: N801 - a context manager reads like a function
    """Inside this context, sys.modules contains the modules that only the fork server has imported."""

    own: dict[str, ModuleType] = {}  # noqa: RUF012 - shared by all contexts

    def __enter__(self) -> None:
        self._others = dict(sys.modules)
        sys.modules.update(self.own)

    def __exit__(self, *_error: object) -> None:
        others = self._others
        added = {n: m for n, m in sys.modules.items() if others.get(n) is not m}
        self.own.update(added)
        for name in added:
            del sys.modules[name]
            if name in others:
                sys.modules[name] = others[name]
