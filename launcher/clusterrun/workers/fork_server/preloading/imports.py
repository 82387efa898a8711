"""Imports modules in the process from which workers are then forked.

If an import hangs, crashes, or does something that a fork would break, the agent replaces the process.
Each worker repeats the output of the imports, as if it had imported the modules itself.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from ..binding import try_to_bind
from ..kernel import affinity, flush_all
from ..script import CannotRunInPlace
from .hazards import ProcessState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, ItemsView, Iterator, Sequence
    from typing import Any, NoReturn

    from .packages import Import


_Environ: Any = type(os.environ)

ALL = "all variables"

READ_ONLY_THEIR_OWN = frozenset({"dask", "donfig", "fsspec", "networkx", "numba", "tqdm"})
"""Packages that iterate over all variables, but read only those that begin with their name."""

_OUTPUT = (1, 2)
_OWN_STATEMENT = b"<string>:1: "


class ImportFailed(CannotRunInPlace):
    """An import has raised an exception; another process may repeat the imports before it."""


class Importer:
    """Imports modules, and records what the imports have done."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, float]] = []
        """The modules, each with the seconds that its import took."""
        self.printed = (b"", b"")
        """What the imports have printed so far to standard output and to standard error."""
        self.used_variables: frozenset[str] = frozenset()
        """The environment variables that the last imports have used."""

    def import_all(
        self,
        imports: Sequence[Import],
        *,
        cpus: list[int] | None,
        per_worker_variables: Collection[str],
        on_begin: Callable[[str], None],
        on_read: Callable[[str], NoReturn],
    ) -> None:
        """Import everything, with the CPU affinity of a worker.

        Args:
            imports: what to import, in order.
            cpus: of a worker; None: it is not bound.
            per_worker_variables: the variables that differ between workers, or are not known yet.
            on_begin: called with the name of each module before its import.
            on_read: called with a sentence if an import uses one of these variables. It ends the process,
                because the importing code could catch an exception.

        Raises:
            ImportFailed: an import has raised an exception.
            CannotRunInPlace: workers can no longer be forked from this process.

        """
        output = CapturedOutput()
        allowed = affinity()
        # Only 4 % of what imports leave is garbage, and a search for it would take 0.1 s for torch.
        thresholds = gc.get_threshold()
        gc.set_threshold(0)
        # Libraries count the CPUs when they are loaded.
        try_to_bind(cpus)
        try:
            state = ProcessState()
            watch(per_worker_variables, lambda name: on_read(_describe_read(name)))
            try:
                for wanted in imports:
                    on_begin(wanted.name)
                    self._import(wanted)
            finally:
                self.used_variables = frozenset(WatchedEnviron.used)
                stop_watching()
            self._check(state, output)
        finally:
            try_to_bind(allowed)
            output.release()
        gc.freeze()
        # If a module has set its own thresholds, they stay.
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)

    def _import(self, wanted: Import) -> None:
        start = time.monotonic()
        # Like a statement of the script: the importer's frame is one of __main__.
        statement = "__import__(name, None, None, names)"
        scope = {"__name__": "__main__", "name": wanted.name, "names": wanted.names}
        try:
            eval(statement, scope)  # noqa: S307
        except BaseException as error:  # also SystemExit
            why = f"importing {wanted.name} raised {type(error).__name__}: {error}"
            raise ImportFailed(why) from error
        self.loaded.append((wanted.name, time.monotonic() - start))

    def _check(self, state: ProcessState, output: CapturedOutput) -> None:
        """Raise ``CannotRunInPlace`` if the imports did something that a fork would break."""
        printed = output.read()
        if _OWN_STATEMENT in printed[1]:
            # In a worker, the warning would show the script's file and line.
            why = f"a module printed {_first_line(printed[1])}"
            raise CannotRunInPlace(why, must_warn=True)
        # This tries a fork.
        change = state.change()
        if change:
            raise CannotRunInPlace(change)
        pairs = zip(output.read(), printed)
        by_the_fork = b"".join(now[len(before) :] for now, before in pairs)
        if by_the_fork:
            why = f"a fork makes a module print {_first_line(by_the_fork)}"
            raise CannotRunInPlace(why, must_warn=True)
        self.printed = (self.printed[0] + printed[0], self.printed[1] + printed[1])


def _describe_read(name: str) -> str:
    """Return, such as "torch reads variable RANK", which module uses a variable."""
    module = (modules_being_imported() or ["it"])[0]
    return f"{module} reads {name if name == ALL else f'variable {name}'}"


def _first_line(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace").splitlines()[0][:200])


class WatchedEnviron(_Environ):  # type: ignore[misc]
    """The class of ``os.environ`` while modules are imported.

    It calls ``report`` with the name of each ``watched`` variable that is used. It replaces the class of
    the existing ``os.environ``, because modules refer to that object.
    """

    watched: Collection[str] = ()
    used: set[str] = set()  # noqa: RUF012 - there is one environment
    """The variables that were used by name since ``watch``."""
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
        """Return the names of all variables; the watched ones are not set yet."""
        packages = {name.partition(".")[0] for name in modules_being_imported()[:1]}
        if not READ_ONLY_THEIR_OWN & packages:
            WatchedEnviron.report(ALL)
        names: Iterator[str] = super().__iter__()
        return names

    def items(self) -> ItemsView[str, str]:
        """Return all variables; like ``__iter__``, without use of a name."""
        read = super().__getitem__
        return {name: read(name) for name in self}.items()


def _check(key: object) -> None:
    name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    WatchedEnviron.used.add(str(name))
    if name in WatchedEnviron.watched:
        WatchedEnviron.report(str(name))


def watch(names: Collection[str], report: Callable[[str], None]) -> None:
    """Call ``report`` with the name of each of these variables that is used, or with ``ALL``."""
    WatchedEnviron.watched = frozenset(names)
    WatchedEnviron.used = set()
    WatchedEnviron.report = staticmethod(report)
    os.environ.__class__ = WatchedEnviron
    os.environb.__class__ = WatchedEnviron


def stop_watching() -> None:
    os.environ.__class__ = _Environ
    os.environb.__class__ = _Environ


def modules_being_imported() -> list[str]:
    """Return the modules on the stack, innermost first."""
    names = []
    frame = sys._getframe(1)  # noqa: SLF001 - documented, though for internal and special purposes
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            names.append(frame.f_globals.get("__name__", "?"))
        frame = frame.f_back  # type: ignore[assignment]
    return [name for name in names if name != "__main__" and not name.startswith("fork_server")]


class CapturedOutput:
    """Standard output and error of this process, collected until ``release``."""

    def __init__(self) -> None:
        self._kept = [os.dup(stream) for stream in _OUTPUT]
        self._collected = [os.memfd_create("printed") for _ in _OUTPUT]
        for stream, collected in zip(_OUTPUT, self._collected):
            os.dup2(collected, stream)

    def read(self) -> tuple[bytes, bytes]:
        """Return what has been printed to standard output and to standard error so far."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        flush_all()
        out, err = (os.pread(one, os.fstat(one).st_size, 0) for one in self._collected)
        return out, err

    def release(self) -> None:
        for stream, kept, collected in zip(_OUTPUT, self._kept, self._collected):
            os.dup2(kept, stream)
            os.close(kept)
            os.close(collected)
