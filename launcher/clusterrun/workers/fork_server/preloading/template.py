"""The process that has imported what the script imports first, and is forked for each worker.

It is a child of the one that the agent has executed, so that an import which hangs, crashes, prints
or does what a fork would break costs this child, and nothing else.
"""

from __future__ import annotations

import gc
import os
import time

from .. import worker_signals
from ..agent_socket import frame
from ..worker_start import die_with_parent
from .captured_output import Printed, import_as_script
from .process_state import ProcessState
from .watched_environ import ALL, modules_being_imported, stop_watching, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Sequence
    from typing import NoReturn

    from .leading_imports import Import
else:
    import _signal as signal


class Template:
    """What happens in the child until it may serve."""

    def __init__(self, report: int, unsettled: Collection[str]) -> None:
        """Take the pipe to the parent, and the names of variables that may not be used."""
        self._report = report
        self._unsettled = unsettled
        self._loaded: list[tuple[str, float]] = []

    def preload(
        self, imports: Sequence[Import], ignored: Collection[int], cpus: list[int] | None
    ) -> list[tuple[str, float]]:
        """Import all that, tell the parent, and return if workers may be forked from here.

        Args:
            imports: what to import, in order.
            ignored: the signals that workers ignore.
            cpus: those of a worker; None: it is not bound.

        Returns:
            What was imported, and in how many seconds each.

        """
        die_with_parent(os.getppid())
        printed = Printed()
        allowed = os.sched_getaffinity(0)
        # Libraries count the CPUs when they are loaded, and look at signals: as in a worker.
        _try_to_use(cpus)
        _take_signals_of_workers(ignored)
        state = ProcessState()
        self._import_all(imports)
        trouble = self._what_was_printed(printed, "a module printed") or state.changes()
        trouble = trouble or self._what_was_printed(printed, "a fork makes a module print")
        if trouble:
            self._refuse(trouble, complaint=bool(printed.first_line()))
        _try_to_use(sorted(allowed))
        worker_signals.shield()
        printed.give_back()
        gc.freeze()
        self._tell("done")
        return self._loaded

    def _import_all(self, imports: Sequence[Import]) -> None:
        watch(self._unsettled, self._touched)
        # Imports leave no garbage. What a module says of that itself holds in the workers.
        thresholds = gc.get_threshold()
        gc.set_threshold(0)
        for wanted in imports:
            self._import(wanted)
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)
        stop_watching()

    def _import(self, wanted: Import) -> None:
        """Import as the script's statement does."""
        self._tell("importing", name=wanted.name)
        start = time.monotonic()
        try:
            import_as_script(wanted.name, wanted.names)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: none of it is for us
            self._refuse(f"importing {wanted.name} raised {type(error).__name__}: {error}")
        self._loaded.append((wanted.name, time.monotonic() - start))

    def _what_was_printed(self, printed: Printed, by_whom: str) -> str:
        line = printed.first_line()
        return f"{by_whom} {line}" if line else ""

    def _touched(self, name: str) -> None:
        """Give up: a module has looked at a variable that each worker gets its own."""
        importing = modules_being_imported()
        what = name if name == ALL else f"variable {name}"
        who = importing[0] if importing else "it"
        self._tell(
            "tainted", why=f"{who} looks at {what}", complete=len(self._loaded), complaint=False
        )
        os._exit(0)

    def _refuse(self, why: str, *, complaint: bool = False) -> NoReturn:
        self._tell("refused", why=why, complaint=complaint)
        os._exit(0)

    def _tell(self, kind: str, **message: object) -> None:
        os.write(self._report, frame(kind, **message))


def _take_signals_of_workers(ignored: Collection[int]) -> None:
    """Have imports find what they find in a worker.

    A scheduler's signal to all processes may end this one: then workers are spawned.
    """
    signal.set_wakeup_fd(-1)
    worker_signals.restore(ignored)
    worker_signals.as_python_sets_them()


def _try_to_use(cpus: list[int] | None) -> None:
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError):
            pass  # the worker's own binding tells
