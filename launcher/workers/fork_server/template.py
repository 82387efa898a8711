"""The process that has imported what the script imports first, and is forked for each worker.

It is a child of the one that the agent has executed, so that a preload which hangs, crashes, prints
or does what a fork would break costs this child, and nothing else.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from .agent_socket import frame
from .exit_handlers import skip_those_of_torch
from .hazards import State
from .libc import PR_SET_PDEATHSIG, prctl
from .printed import Printed, import_as_script
from .unsettled import ALL, modules_being_imported, stop_watching, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Sequence
    from typing import Any, NoReturn

    from .leading_imports import Import
else:
    import _signal as signal


class Template:
    """What happens in the child until it may serve."""

    def __init__(self, report: int, unsettled: Collection[str]) -> None:
        """Take the pipe to tell the parent by, and the names of variables that may not be used."""
        self._report = report
        self._unsettled = unsettled
        self._has_torch = False
        self._loaded: list[tuple[str, float]] = []
        self._found = frozenset(sys.modules)

    def preload(
        self, imports: Sequence[Import], followers: Sequence[str], cpus: list[int] | None
    ) -> list[tuple[str, float]]:
        """Import all that, tell the parent, and return if workers may be forked from here.

        Returns:
            What was imported, and in how many seconds each.

        """
        parent = os.getppid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        printed = Printed()
        allowed = os.sched_getaffinity(0)
        state = State()
        # Libraries count the CPUs when they are loaded: here, too, they are to find a worker's.
        _try_to_use(cpus)
        watch(self._unsettled, self._touched)
        # Imports leave no garbage. What a module says of that itself holds in the workers.
        thresholds = gc.get_threshold()
        gc.set_threshold(0)
        for wanted in imports:
            self._import(wanted.name, wanted.names)
        if followers and "torch" in sys.modules:
            self._import_followers(followers)
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)
        stop_watching()
        _try_to_use(sorted(allowed))
        if printed.first_line():
            self._refuse(f"a module printed {printed.first_line()}", complaint=True)
        trouble = state.changes()
        if printed.first_line():
            self._refuse(f"a fork makes a module print {printed.first_line()}", complaint=True)
        if trouble:
            self._refuse(trouble)
        printed.give_back()
        gc.freeze()
        self._tell("done")
        return self._loaded

    def _import(self, name: str, names: tuple[str, ...], *, may_be_missing: bool = False) -> None:
        """Import as the script's statement does."""
        self._tell("importing", name=name)
        start = time.monotonic()
        try:
            import_as_script(name, names)
        except BaseException as error:  # noqa: BLE001 - also SystemExit: none of it is for us
            if may_be_missing and isinstance(error, ImportError):
                return
            self._refuse(f"importing {name} raised {type(error).__name__}: {error}")
        self._loaded.append((name, time.monotonic() - start))
        if not self._has_torch and "torch" in sys.modules:
            self._has_torch = True
            skip_those_of_torch()

    def _import_followers(self, names: Sequence[str]) -> None:
        """Import what may be missing, and is nobody's statement: what it sets is taken back."""
        stop_watching()
        before = frozenset(os.environ)
        watch(self._unsettled, self._touched)
        tempfile: Any = sys.modules.get("tempfile")
        folder = getattr(tempfile, "tempdir", None)
        for name in names:
            self._import(name, (), may_be_missing=True)
        stop_watching()
        for key in os.environ.keys() - before:
            del os.environ[key]
        if tempfile is not None:
            tempfile.tempdir = folder

    def _touched(self, name: str) -> None:
        """Give up: a module has looked at a variable that each worker gets its own."""
        importing = modules_being_imported()
        what = name if name == ALL else f"variable {name}"
        complete = [
            module
            for module, loaded in list(sys.modules.items())
            if module not in self._found and _is_complete(loaded)
        ]
        self._tell("tainted", what=what, modules=importing, complete=complete)
        os._exit(0)

    def _refuse(self, why: str, *, complaint: bool = False) -> NoReturn:
        self._tell("refused", why=why, complaint=complaint)
        os._exit(0)

    def _tell(self, kind: str, **message: object) -> None:
        os.write(self._report, frame(kind, **message))


def _is_complete(module: Any) -> bool:  # noqa: ANN401 - what somebody has put into sys.modules
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _try_to_use(cpus: list[int] | None) -> None:
    if cpus is not None:
        try:
            os.sched_setaffinity(0, cpus)
        except (OSError, ValueError):
            pass  # the worker's own binding tells
