"""Hides modules that only the fork server has imported from the job's own code."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType


def hide_all_but(initial: Collection[str]) -> None:
    """Remove all modules except the ``initial`` ones from sys.modules; the server's code keeps using them.

    So a script imports its own ``select.py``, as it does in a fresh interpreter.
    """
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
