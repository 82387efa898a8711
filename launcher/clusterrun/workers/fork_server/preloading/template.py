"""The child that imports what the script imports first, and from which workers are then forked.

An import that hangs, crashes or does what a fork would break costs this child and nothing else. What
it prints, each worker prints first, as if it had imported the module itself.
"""

from __future__ import annotations

import _signal as signal
import gc
import os
import sys
import time

from .. import worker_signals
from ..agent_socket import frame
from ..this_process import die_with_parent, flush_all
from .process_state import ProcessState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any, NoReturn

    from .leading_imports import Import


_OUTPUT = (1, 2)
_OF_OUR_STATEMENT = b"<string>:1: "


class Template:
    """The work of this child until it may serve."""

    def __init__(self, report: int, later_variables: Collection[str]) -> None:
        self._report = report
        self._later_variables = later_variables
        self._loaded: list[tuple[str, float]] = []
        self.printed = (b"", b"")
        """What the imports have printed to standard output and to standard error."""

    def preload(
        self, imports: Sequence[Import], ignored: Collection[int], cpus: list[int] | None
    ) -> list[tuple[str, float]]:
        """Import everything, report the finding, and return if workers may be forked from here.

        Args:
            imports: what to import, in order.
            ignored: the signals that workers ignore.
            cpus: those of a worker; None: it is not bound.

        Returns:
            The modules, each with the seconds that its import took.

        """
        die_with_parent(os.getppid())
        output = CapturedOutput()
        allowed = os.sched_getaffinity(0)
        # Libraries count the CPUs and read the signal handlers when they are loaded: as in a worker.
        _try_to_bind(cpus)
        _set_signals_of_workers(ignored)
        state = ProcessState()
        self._import_all(imports)
        self.printed = output.read()
        if _OF_OUR_STATEMENT in self.printed[1]:
            # In the script, the warning names its file and line.
            self._refuse(f"a module printed {_first_line(self.printed[1])}", complaint=True)
        trouble = state.changes()
        if trouble:
            self._refuse(trouble)
        printed = zip(output.read(), self.printed)
        by_the_fork = b"".join(now[len(before) :] for now, before in printed)
        if by_the_fork:
            line = _first_line(by_the_fork)
            self._refuse(f"a fork makes a module print {line}", complaint=True)
        _try_to_bind(sorted(allowed))
        worker_signals.shield()
        output.release()
        gc.freeze()
        self._send("safe")
        return self._loaded

    def _import_all(self, imports: Sequence[Import]) -> None:
        watch(self._later_variables, self._refuse_variable)
        # Imports leave no garbage. If a module sets its own thresholds, the workers keep them.
        thresholds = gc.get_threshold()
        gc.set_threshold(0)
        for wanted in imports:
            self._import(wanted)
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)
        stop_watching()

    def _import(self, wanted: Import) -> None:
        self._send("importing", module=wanted.name)
        start = time.monotonic()
        try:
            import_as_script(wanted.name, wanted.names)
        except BaseException as error:  # also SystemExit
            self._refuse(f"importing {wanted.name} raised {type(error).__name__}: {error}")
        self._loaded.append((wanted.name, time.monotonic() - start))

    def _refuse_variable(self, name: str) -> NoReturn:
        """Give up: a module uses a variable that differs by worker."""
        module = (modules_being_imported() or ["it"])[0]
        why = f"{module} reads {name if name == ALL else f'variable {name}'}"
        self._send("variable_read", why=why, imported=len(self._loaded), complaint=False)
        os._exit(0)

    def _refuse(self, why: str, *, complaint: bool = False) -> NoReturn:
        self._send("not_safe", why=why, complaint=complaint)
        os._exit(0)

    def _send(self, kind: str, **message: object) -> None:
        os.write(self._report, frame(kind, **message))


def _first_line(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace").splitlines()[0][:200])


def _set_signals_of_workers(ignored: Collection[int]) -> None:
    """Set the handlers that imports find in a worker.

    A scheduler's signal to all processes may end this one: then workers are spawned.
    """
    signal.set_wakeup_fd(-1)
    worker_signals.restore(ignored)
    worker_signals.set_as_python_does()


def _try_to_bind(cpus: list[int] | None) -> None:
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError):
            pass  # the worker's own binding reports it


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
