"""Runs a script in a forked worker: what happens before it, and after its end."""

from __future__ import annotations

import _signal as signal
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType
    from typing import Any

    from .failure_notes import FailureNote
    from .script import Script

ENDS_AT_ONCE = "__ends_at_once__"
"""A script sets this global variable if its result is written and it has nothing else to write."""


class ScriptRun:
    """Code that ``__main__`` executes, and what to do before and after it."""

    def __init__(
        self,
        script: Script,
        namespace: dict[str, Any],
        failure_note: FailureNote,
        blocked_signals: Collection[int],
    ) -> None:
        """Take what the run needs.

        Args:
            script: what is run.
            namespace: for its code.
            failure_note: where a failure is noted.
            blocked_signals: the signals that the script finds blocked.

        """
        self.code = script.code
        self.namespace = namespace
        self._script = script
        self._failure_note = failure_note
        self._blocked_signals = blocked_signals
        self._ends_at_once = False

    def begin(self) -> None:
        """Unblock signals; print the compiler's warnings and the output of the imports before the fork.

        This is the last step before the script, inside the same ``try``: so Ctrl-C has the same effect
        before the script begins as in it.
        """
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked_signals)
        if self._script.warnings:
            # Not ``warnings``, which may be a module of the script.
            import _warnings

            for it in self._script.warnings:
                _warnings.warn_explicit(it.message, it.category, it.filename, it.lineno)
        for stream, text in enumerate(self._script.printed, start=1):
            write_all(stream, text)

    def note_failure(self, error: BaseException) -> None:
        """Note when the script failed, and remove this package's frames from its traceback.

        To be called before Python passes ``error`` to ``sys.excepthook``.
        """
        # After a KeyboardInterrupt, Python ends the process with SIGINT.
        if not isinstance(error, KeyboardInterrupt):
            self._failure_note.note(exit_code_of(error))
        hook = getattr(sys, "excepthook", None)
        if hook is None or isinstance(error, SystemExit):
            return

        # __main__'s frame, and that of the statement that calls runpy.
        frames = 2 if self._script.is_module else 1

        def print_without_own_frames(
            kind: type[BaseException], value: BaseException, traceback: TracebackType | None
        ) -> None:
            sys.excepthook = hook
            for _ in range(frames):
                traceback = None if traceback is None else traceback.tb_next
            sys.last_traceback = value.__traceback__ = traceback
            hook(kind, value, traceback)

        # Python calls it once, handles its errors, and ends the process.
        sys.excepthook = print_without_own_frames

    def let_python_end(self) -> None:
        """Unfreeze all objects if one of them may need to be collected before the process ends.

        Objects from before the fork are frozen (``gc.freeze``): to search them costs each worker of a
        torch job 0.5 s and 100 MB. But a cycle with a frozen object is not collected, so the buffer of a
        file in it would never be written, and modules made with nanobind would print what they leak.
        """
        if self._script.torch is not None:
            self._script.torch.show()
        try:
            may_stay_frozen = (
                self._script.imports_are_known
                and not other_threads_run()
                and not has_destructors_to_run()
                and not reports_leaks()
            )
        except Exception:  # a class of the script's may answer in any way
            may_stay_frozen = False
        if not may_stay_frozen:
            gc.unfreeze()
        self._ends_at_once = may_stay_frozen and bool(self.namespace.get(ENDS_AT_ONCE))

    def end_at_once(self) -> None:
        """End the process without freeing objects, if the script allows it, as multiprocessing does.

        To free them takes each worker of a torch job 0.25 s.
        """
        if not self._ends_at_once:
            return
        try:
            # The output of C code.
            import ctypes

            ctypes.CDLL(None).fflush(None)
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:  # Python tries again, and prints the error
            return
        os._exit(0)


def write_all(descriptor: int, text: bytes) -> None:
    try:
        while text:
            text = text[os.write(descriptor, text) :]
    except OSError:  # closed, or nothing reads it any more
        pass


def other_threads_run() -> bool:
    """Tell whether other Python threads run, which may still open files."""
    # A script may have a threading.py of its own.
    count = getattr(sys.modules.get("threading"), "active_count", None)
    return count is not None and count() > 1


def has_destructors_to_run() -> bool:
    """Tell whether an object made since the fork has a destructor; every file has one."""
    # get_objects does not return frozen objects. Not isinstance: a ``__class__`` property may run code.
    kinds = {id(kind): kind for kind in map(type, gc.get_objects())}
    return any("__del__" in vars(base) for kind in kinds.values() for base in kind.__mro__)


def reports_leaks() -> bool:
    """Tell whether a module made with nanobind is loaded, such as triton's from torch 2.15 on.

    It prints hundreds of functions and types that are not freed at the exit. Its metaclasses show it.
    """
    return any(kind.__module__ == "nanobind" for kind in type.__subclasses__(type))


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a process whose script ends with ``error``."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def renew_random_state() -> None:
    """Seed numpy, torch and multiprocessing again: they seed themselves at random when imported.

    ``random`` reseeds itself after a fork; ``tempfile``, ``uuid`` and ``secrets`` read new random bytes.
    """
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
