"""The module ``__main__`` and the arguments that a script finds, as a fresh interpreter sets them."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any


def set_arguments(command: list[str], *, is_module: bool) -> None:
    """Set sys.argv and sys.orig_argv for ``PYTHON -u SCRIPT ...`` or ``PYTHON -u -m MODULE ...``."""
    # In place: a module may hold the lists.
    sys.argv[:] = ["-m", *command[4:]] if is_module else command[2:]
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        sys.orig_argv[:] = command


def set_search_path(first: str) -> None:
    """Put the folder of the script first on sys.path, and forget those of the fork server."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, first)
    own = os.path.dirname(os.path.dirname(__file__))
    for path in [path for path in sys.path_importer_cache if path.startswith(own)]:
        del sys.path_importer_cache[path]


def new_main(script_namespace: Mapping[str, object], path: str) -> ModuleType:
    """Return a ``__main__`` for the script at ``path``; "": for a module that runpy runs."""
    main = type(sys)("__main__")
    namespace = main.__dict__
    namespace.clear()
    namespace.update(script_namespace)
    namespace["__doc__"] = None
    if "__annotations__" in script_namespace:
        main.__annotations__ = {}
    if path:
        loader: Any = script_namespace["__loader__"]
        namespace["__file__"] = path
        namespace["__loader__"] = type(loader)("__main__", path)
    else:
        # runpy sets the rest.
        namespace.pop("__file__", None)
        namespace.pop("__cached__", None)
        namespace["__loader__"] = None
    return main


def replace_main(new: ModuleType) -> None:
    """Put ``new`` in the place of ``__main__``, under every name that it has in sys.modules."""
    before = sys.modules["__main__"]
    for name, module in list(sys.modules.items()):
        # multiprocessing adds another name.
        if module is before:
            sys.modules[name] = new
