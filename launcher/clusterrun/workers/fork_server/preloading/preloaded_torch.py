"""Checks in a worker, when its script imports torch, that this finds what the server's import found.

The script may have done anything before. Until that import, ``sys.modules`` has no torch, as in a fresh
interpreter, nor another installed package that came with it, such as numpy, until that is imported. If
something that these imports read has changed by then, the worker starts over: it executes its program
anew, as a spawned one does. So lines before the import run twice, once only: that is
remembered, and later workers of this script are spawned.
"""

from __future__ import annotations

import os
import sys

from ..kernel import affinity
from .module_files import is_found_again, is_stdlib
from .torch_variables import TORCH, torch_reads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any


class PreloadedTorch:
    """torch as this process has imported it, and what that import has read; hidden until it is imported."""

    def __init__(
        self, before: Collection[str], read: Collection[str], printed: tuple[bytes, bytes]
    ) -> None:
        """Take what there is right after the import.

        Args:
            before: the modules that were imported before it.
            read: the variables that it has used in Python.
            printed: what it has printed to standard output and to standard error.

        """
        brought = {name: module for name, module in sys.modules.items() if name not in before}
        self._hidden: dict[str, dict[str, Any]] = {}
        """The modules of each package that the script has not imported yet, by the package."""
        self._others: dict[str, Any] = {}
        """The modules that come with Python."""
        for name, module in brought.items():
            package = name.partition(".")[0]
            spec = getattr(brought.get(package), "__spec__", None)
            # Of a package that was there before, all parts stay; __main__ has no spec.
            is_hidden = spec is not None and not is_stdlib(package)
            own = self._hidden.setdefault(package, {}) if is_hidden else self._others
            own[name] = module
        self._read = frozenset(read)
        self._printed = printed
        self._variables = self._variables_now()
        self._facts: Mapping[str, Any] = {}
        self._start_over: Callable[[str], None] = lambda _why: None

    def hide(self, reexec: Callable[[str], None]) -> None:
        """Hide torch in this worker; ``reexec`` is called with what has changed, and never returns."""
        # __main__ is another one by now.
        self._others = {name: sys.modules[name] for name in self._others}
        self._facts = dict(self._facts_now())
        self._start_over = reexec
        for modules in self._hidden.values():
            for name in modules:
                del sys.modules[name]
        sys.meta_path.insert(0, self)

    def show(self, package: str = TORCH) -> None:
        """Put a package where it was; with torch, all that came with it."""
        for each in [package] if package != TORCH else list(self._hidden):
            # The script may have put something of its own there.
            for name, module in self._hidden.pop(each, {}).items():
                sys.modules.setdefault(name, module)
        if not self._hidden and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        """Return a spec of a package (importlib.abc.MetaPathFinder), which may be looked at only."""
        if name not in self._hidden:
            return None
        own: Any = self._hidden[name][name].__spec__
        spec = type(own)(name, _Loader(self, own.loader), origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        return spec

    def imported(self, package: str) -> Any:
        """Return a package, which is imported now, unless what its import reads has changed."""
        module = self._hidden[package][package]
        changed = next(self._changes(), "")
        if changed:
            self._start_over(changed)
        self.show(package)
        if package == TORCH:
            for stream, text in zip((sys.stdout, sys.stderr), self._printed):
                if text and stream is not None:
                    stream.write(text.decode(errors="replace"))
        return module

    def _variables_now(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if k in self._read or torch_reads(k)}

    def _changes(self) -> Iterator[str]:
        """Yield what differs from the time of the server's import."""
        variables = self._variables_now()
        for name in sorted(self._variables.keys() | variables.keys()):
            if self._variables.get(name) != variables.get(name):
                yield f"{name} was {'set' if name in variables else 'deleted'}"
        facts = dict(self._facts_now())
        for name, before in self._facts.items():
            if facts.get(name) != before and name != "the search path":
                yield f"{name} had changed"
        for name, module in self._others.items():
            if sys.modules.get(name) is not module:
                yield f"module {name} was replaced"
        hidden = {n: m for modules in self._hidden.values() for n, m in modules.items()}
        for name in hidden:
            if name in sys.modules:
                yield f"module {name} was replaced"
        if facts["the search path"] != self._facts["the search path"]:
            for name, module in (*self._others.items(), *hidden.items()):
                if "." not in name and not is_found_again(name, module, but=self):
                    yield f"the search path led to another {name}"

    def _facts_now(self) -> Iterator[tuple[str, object]]:
        """Yield what the import reads besides variables and modules; equal objects are the same."""
        yield "the CPUs that it may use", affinity()
        yield "how libraries are loaded", sys.getdlopenflags()
        yield "standard output or error", (id(sys.stdout), id(sys.stderr))
        yield "the search path", (list(sys.path), [id(each) for each in sys.path_hooks])
        filters: Any = getattr(sys.modules.get("warnings"), "filters", ())
        # Others matter only if there was a warning.
        said = any(self._printed)
        yield "a filter of warnings", [each for each in filters if said or each[0] == "error"]
        logging: Any = sys.modules.get("logging")
        if logging is not None:
            yield "the class of loggers", logging.getLoggerClass()
            loggers = vars(logging.root.manager).get("loggerDict", {})
            # Those that there were before the script began.
            names = self._facts.get("a logger", loggers)
            yield "a logger", {name: _state(loggers.get(name)) for name in names}


def _state(logger: Any) -> object:
    fields = vars(logger) if logger is not None else {}
    return [
        type(logger),
        *(fields.get(name) for name in ("level", "disabled", "propagate")),
        *(list(map(id, fields.get(name, ()))) for name in ("handlers", "filters")),
    ]


class _Loader:
    """The loader of a package (importlib.abc.Loader), which finds it loaded."""

    def __init__(self, preloaded: PreloadedTorch, own: object) -> None:
        self._preloaded = preloaded
        self._own = own

    def __getattr__(self, name: str) -> Any:
        """Answer as the package's own loader does."""
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> Any:
        module = self._preloaded.imported(spec.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        # importlib has set its own.
        module.__spec__ = self._spec
