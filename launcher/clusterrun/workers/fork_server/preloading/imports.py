"""Imports what the script imports first, in the process that workers are then forked from.

An import that hangs, crashes or does what a fork would break spoils that process: the agent gives it up,
and starts another. What it prints, each worker prints first, as if it had imported the module itself.
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
"""Packages that go through all variables for those that begin with their name."""

_OUTPUT = (1, 2)
_OF_OUR_STATEMENT = b"<string>:1: "


class ImportFailed(CannotRunInPlace):
    """An import has raised something; those before it may be made again, in another process."""


class Imported:
    """What has been imported so far."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, float]] = []
        """The modules, each with the seconds that its import took."""
        self.printed = (b"", b"")
        """What the imports have printed to standard output and to standard error, so far."""
        self.used: frozenset[str] = frozenset()
        """The variables that the last imports have used."""

    def import_all(
        self,
        imports: Sequence[Import],
        *,
        cpus: list[int] | None,
        of_workers: Collection[str],
        begins: Callable[[str], None],
        reads: Callable[[str], NoReturn],
    ) -> None:
        """Import everything, with the CPUs that a worker has.

        Args:
            imports: what to import, in order.
            cpus: those of a worker; None: it is not bound.
            of_workers: the variables that differ by worker, or are not known yet.
            begins: called with the name of each module before its import.
            reads: called if one of these variables is used, with a sentence; it ends the process, as
                any other end of an import could be caught by who imports.

        Raises:
            ImportFailed: one has raised something.
            CannotRunInPlace: workers can't be forked from here any more.

        """
        output = CapturedOutput()
        allowed = affinity()
        # Of what imports leave, 4 % are garbage; to search all of it would take 0.1 s for torch.
        thresholds = gc.get_threshold()
        gc.set_threshold(0)
        # Libraries count the CPUs when they are loaded: as in a worker.
        try_to_bind(cpus)
        try:
            state = ProcessState()
            watch(of_workers, lambda name: reads(_what_reads(name)))
            try:
                for wanted in imports:
                    begins(wanted.name)
                    self._import(wanted)
            finally:
                self.used = frozenset(WatchedEnviron.used)
                stop_watching()
            self._look_for_trouble(state, output)
        finally:
            try_to_bind(allowed)
            output.release()
        gc.freeze()
        # If a module has set its own thresholds, the workers keep them.
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)

    def _import(self, wanted: Import) -> None:
        start = time.monotonic()
        try:
            import_as_script(wanted.name, wanted.names)
        except BaseException as error:  # also SystemExit
            why = f"importing {wanted.name} raised {type(error).__name__}: {error}"
            raise ImportFailed(why) from error
        self.loaded.append((wanted.name, time.monotonic() - start))

    def _look_for_trouble(self, state: ProcessState, output: CapturedOutput) -> None:
        printed = output.read()
        if _OF_OUR_STATEMENT in printed[1]:
            # In the script, the warning names its file and line.
            why = f"a module printed {_first_line(printed[1])}"
            raise CannotRunInPlace(why, is_complaint=True)
        trouble = state.changes()
        if trouble:
            raise CannotRunInPlace(trouble)
        pairs = zip(output.read(), printed)
        by_the_fork = b"".join(now[len(before) :] for now, before in pairs)
        if by_the_fork:
            why = f"a fork makes a module print {_first_line(by_the_fork)}"
            raise CannotRunInPlace(why, is_complaint=True)
        self.printed = (self.printed[0] + printed[0], self.printed[1] + printed[1])


def _what_reads(name: str) -> str:
    """Return "torch reads variable RANK": what uses a variable while it is imported."""
    module = (modules_being_imported() or ["it"])[0]
    return f"{module} reads {name if name == ALL else f'variable {name}'}"


def _first_line(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace").splitlines()[0][:200])


class WatchedEnviron(_Environ):  # type: ignore[misc]
    """``os.environ`` while modules are imported: notices which of them use a variable of the workers.

    It calls ``report`` with the name of each of the ``watched`` variables that is used. It is set as
    the class of the ``os.environ`` that exists, as modules hold that object.
    """

    watched: Collection[str] = ()
    used: set[str] = set()  # noqa: RUF012 - there is one environment
    """The variables that were used by name, since ``watch``."""
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

    def items(self) -> ItemsView[str, str]:
        """Return all variables: as with ``__iter__``, none of them is used by its name."""
        read = super().__getitem__
        return {name: read(name) for name in self}.items()


def _check(key: object) -> None:
    name = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    WatchedEnviron.used.add(str(name))
    if name in WatchedEnviron.watched:
        WatchedEnviron.report(str(name))


def watch(names: Collection[str], report: Callable[[str], None]) -> None:
    """Have ``report`` called with the name of a variable that is used, or ``ALL``."""
    WatchedEnviron.watched = frozenset(names)
    WatchedEnviron.used = set()
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


def import_as_script(name: str, names: tuple[str, ...]) -> None:
    """Import as a script's statement does: deprecated modules warn by the name of the importer."""
    namespace = {"__name__": "__main__", "name": name, "names": names}
    eval("__import__(name, None, None, names)", namespace)  # noqa: S307 - a frame of __main__
