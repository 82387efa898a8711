"""Which modules the job's own code may find imported."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType, TracebackType


def hide_all_but(found: Collection[str]) -> None:
    """Take every module but ``found`` out of sys.modules; those who have imported them keep them.

    A script's own ``select.py`` is what it imports then, as in an interpreter of its own.
    """
    for name in sys.modules.keys() - found:
        del sys.modules[name]


class hidden_imports:  # noqa: N801 - a context manager reads like a function
    """Within, modules that we alone have imported are there; outside, nobody sees them."""

    ours: dict[str, ModuleType] = {}  # noqa: RUF012 - what all of these share

    def __enter__(self) -> None:
        """Note what others see, and put what is ours in its place."""
        self._others = dict(sys.modules)
        sys.modules.update(self.ours)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep what has come, and hide it."""
        others = self._others
        came = {n: m for n, m in sys.modules.items() if others.get(n) is not m}
        self.ours.update(came)
        for name in came:
            del sys.modules[name]
            if name in others:
                sys.modules[name] = others[name]
