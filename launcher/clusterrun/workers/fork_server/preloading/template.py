"""The child that imports what the script imports first, and from which workers are then forked.

An import that hangs, crashes, prints or does what a fork would break costs this child and nothing
else.
"""

from __future__ import annotations

import gc
import os
import time

from .. import worker_signals
from ..agent_socket import frame
from ..system.this_process import die_with_parent
from .captured_output import CapturedOutput, import_as_script
from .process_state import ProcessState
from .watched_environ import ALL, modules_being_imported, stop_watching, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Sequence
    from typing import NoReturn

    from .statements import Import
else:
    import _signal as signal


class Template:
    """The work of this child until it may serve."""

    def __init__(self, report: int, later_variables: Collection[str]) -> None:
        """Take the pipe to the parent, and the names of variables that imports may not use."""
        self._report = report
        self._later_variables = later_variables
        self._loaded: list[tuple[str, float]] = []

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
        trouble = _printed(output, "a module printed") or state.changes()
        trouble = trouble or _printed(output, "a fork makes a module print")
        if trouble:
            self._refuse(trouble, complaint=bool(output.first_line()))
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
        except BaseException as error:  # noqa: BLE001 - also SystemExit
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


def _printed(output: CapturedOutput, what: str) -> str:
    line = output.first_line()
    return f"{what} {line}" if line else ""


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
