"""Hides preloaded torch from a script until the script imports it, then checks that nothing has changed.

A script may do anything before it imports torch. Until then ``sys.modules`` has no torch, as in a fresh
interpreter, and until their own import no other installed package, such as numpy, that was imported with it.
If something that these imports read has changed meanwhile, the worker executes its program, so the lines
before the import run twice. That is cached, and later workers of the script are spawned.
"""

from __future__ import annotations

import builtins
import os
import sys

from ..kernel import affinity
from .module_files import is_stdlib, would_find_same
from .torch_variables import TORCH, torch_reads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from typing import Any

_SEARCH_PATH = "the search path"


class PreloadedTorch:
    """Torch and the packages imported with it, and what these imports have read."""

    def __init__(
        self, before: Collection[str], read: Collection[str], printed: tuple[bytes, bytes]
    ) -> None:
        """Record the state right after the import.

        Args:
            before: the modules that were imported before it.
            read: the variables that it has used in Python.
            printed: what it has printed to standard output and to standard error.

        """
        added = {name: module for name, module in sys.modules.items() if name not in before}
        self._hidden: dict[str, dict[str, Any]] = {}
        """The modules of each package that the script has not imported yet, by package."""
        self._visible: dict[str, Any] = {}
        """The other added modules, such as those of the standard library."""
        for name, module in added.items():
            package = name.partition(".")[0]
            # A package that was imported before stays visible; __main__ has no spec.
            spec = getattr(added.get(package), "__spec__", None)
            is_hidden = spec is not None and not is_stdlib(package)
            modules = self._hidden.setdefault(package, {}) if is_hidden else self._visible
            modules[name] = module
        self._read = frozenset(read)
        self._printed = printed
        self._variables = self._variables_now()
        self._facts: Mapping[str, Any] = {}
        self._reexec: Callable[[str], None]

    def hide(self, reexec: Callable[[str], None]) -> None:
        """Hide torch in this worker; ``reexec`` is called with what has changed, and never returns."""
        # Refreshed, because __main__ has been replaced.
        self._visible = {name: sys.modules[name] for name in self._visible}
        self._facts = dict(self._facts_now())
        self._reexec = reexec
        for modules in self._hidden.values():
            for name in modules:
                del sys.modules[name]
        sys.meta_path.insert(0, self)

    def show(self, package: str = TORCH) -> None:
        """Put a package back into sys.modules; with torch, all that was imported with it."""
        for each in [package] if package != TORCH else list(self._hidden):
            # A module that the script has put there stays.
            for name, module in self._hidden.pop(each, {}).items():
                sys.modules.setdefault(name, module)
        if not self._hidden and self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:  # noqa: ARG002
        """Return the spec of a hidden package (importlib.abc.MetaPathFinder); this imports nothing."""
        if name not in self._hidden:
            return None
        own: Any = self._hidden[name][name].__spec__
        spec = type(own)(name, _Loader(self, own.loader), origin=own.origin)
        spec.submodule_search_locations = own.submodule_search_locations
        spec.has_location = own.has_location
        return spec

    def load(self, package: str) -> Any:
        """Show and return a package that is being imported; call ``reexec`` if anything has changed."""
        module = self._hidden[package][package]
        change = next(self._changes(), None)
        if change:
            self._reexec(change)
        self.show(package)
        if package == TORCH:
            for stream, text in zip((sys.stdout, sys.stderr), self._printed):
                if text and stream is not None:
                    stream.write(text.decode(errors="replace"))
        return module

    def _variables_now(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if k in self._read or torch_reads(k)}

    def _changes(self) -> Iterator[str]:
        """Yield the differences from the time of the server's import."""
        variables = self._variables_now()
        for name in sorted(self._variables.keys() | variables.keys()):
            if self._variables.get(name) != variables.get(name):
                yield f"{name} was {'set' if name in variables else 'deleted'}"
        facts = dict(self._facts_now())
        for name, before in self._facts.items():
            if facts.get(name) != before and name != _SEARCH_PATH:
                yield f"{name} had changed"
        for name, module in self._visible.items():
            if sys.modules.get(name) is not module:
                yield f"module {name} was replaced"
        hidden = {n: m for modules in self._hidden.values() for n, m in modules.items()}
        for name in hidden:
            if name in sys.modules:
                yield f"module {name} was replaced"
        if facts[_SEARCH_PATH] != self._facts[_SEARCH_PATH]:
            for name, module in (*self._visible.items(), *hidden.items()):
                if "." not in name and not would_find_same(name, module, without=self):
                    yield f"the search path led to another {name}"

    def _facts_now(self) -> Iterator[tuple[str, object]]:
        """Yield what the import reads besides variables and modules, each with a value to compare."""
        yield "the CPUs that it may use", affinity()
        yield "how libraries are loaded", sys.getdlopenflags()
        yield "how modules are imported", (id(builtins.__import__), self._finders())
        yield "standard output or error", (id(sys.stdout), id(sys.stderr))
        yield _SEARCH_PATH, (list(sys.path), [id(each) for each in sys.path_hooks])
        filters: Any = getattr(sys.modules.get("warnings"), "filters", ())
        # If the import printed nothing, it did not warn, and only filters that raise errors matter.
        all_matter = any(self._printed)
        yield "a filter of warnings", [each for each in filters if all_matter or each[0] == "error"]
        logging: Any = sys.modules.get("logging")
        if logging is not None:
            yield "the class of loggers", logging.getLoggerClass()
            loggers = vars(logging.root.manager).get("loggerDict", {})
            # Only those that existed before the script began.
            names = self._facts.get("a logger", loggers)
            yield "a logger", {name: _state(loggers.get(name)) for name in names}

    def _finders(self) -> list[int]:
        """Return the finders that search for an installed module: those of import hooks stand first."""
        names = [getattr(each, "__name__", "") for each in sys.meta_path]
        end = names.index("PathFinder") if "PathFinder" in names else None
        return [id(each) for each in sys.meta_path[:end] if each is not self]


def _state(logger: Any) -> object:
    fields = vars(logger) if logger is not None else {}
    return [
        type(logger),
        *(fields.get(name) for name in ("level", "disabled", "propagate")),
        *(list(map(id, fields.get(name, ()))) for name in ("handlers", "filters")),
    ]


class _Loader:
    """The loader of a hidden package (importlib.abc.Loader)."""

    def __init__(self, preloaded: PreloadedTorch, own: object) -> None:
        self._preloaded = preloaded
        self._own = own

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the package's own loader."""
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> Any:
        module = self._preloaded.load(spec.name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        # importlib has replaced it.
        module.__spec__ = self._spec
