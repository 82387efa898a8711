"""The run of a script in a forked worker: what ``__main__`` executes, and what is done at its end."""

from __future__ import annotations

import _signal as signal
import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import CodeType, TracebackType
    from typing import Any
    from warnings import WarningMessage

    from .failure_notes import FailureNote
    from .preloading.preloaded_torch import PreloadedTorch

ENDS_AT_ONCE = "__ends_at_once__"
"""A global variable by which a script says that it has left its result, and nothing else to write."""


class ScriptRun:
    """Code to execute, and what to do before and after it."""

    def __init__(  # noqa: PLR0913 - what a script finds, and what is known of it
        self,
        code: CodeType,
        namespace: dict[str, Any],
        frames: int,
        *,
        end: FailureNote | None = None,
        imports_are_known: bool = False,
        blocked_signals: Collection[int] = (),
        warnings: Sequence[WarningMessage] = (),
        printed: tuple[bytes, bytes] = (b"", b""),
        torch: PreloadedTorch | None = None,
    ) -> None:
        """Execute ``code`` in ``namespace``, above ``frames`` frames of ours.

        Args:
            code: the script's.
            namespace: that of ``__main__``.
            frames: their number.
            end: where a failure is noted; None: nowhere.
            imports_are_known: all that was imported before the fork is on the verified list.
            blocked_signals: those that the script finds blocked.
            warnings: the compiler's.
            printed: what the imports before the fork have printed to standard output and error.
            torch: what the script does not see before it imports it.

        """
        self.code = code
        self.namespace = namespace
        self._frames = frames
        self._end = end
        self._imports_are_known = imports_are_known
        self._blocked_signals = blocked_signals
        self._warnings = warnings
        self._printed = printed
        self._torch = torch
        self._ends_at_once = False

    def begin(self) -> None:
        """Unblock the signals, which were blocked at the fork, and print what came before the script.

        These are the compiler's warnings, and what the imports have printed.

        This is the last step, inside the statement that executes the script: Ctrl-C ends a script
        that has not begun in the same way as one that runs.
        """
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked_signals)
        if self._warnings:
            import warnings

            for it in self._warnings:
                warnings.warn_explicit(it.message, it.category, it.filename, it.lineno)
        for stream, text in enumerate(self._printed, start=1):
            write_all(stream, text)

    def note_failure(self, error: BaseException) -> None:
        """Note when the script failed, and leave our frames out of its traceback.

        Called while ``error`` leaves the script, before Python prints it by ``sys.excepthook``.
        """
        # After a KeyboardInterrupt, Python ends the process with SIGINT.
        if self._end is not None and not isinstance(error, KeyboardInterrupt):
            self._end.note(exit_code_of(error))
        hook = getattr(sys, "excepthook", None)
        if hook is None or isinstance(error, SystemExit):
            return

        def print_without_our_frames(
            kind: type[BaseException], value: BaseException, traceback: TracebackType | None
        ) -> None:
            sys.excepthook = hook
            for _ in range(self._frames):
                traceback = None if traceback is None else traceback.tb_next
            sys.last_traceback = value.__traceback__ = traceback
            hook(kind, value, traceback)

        # Python calls it once, also handles a hook that fails, and ends the process.
        sys.excepthook = print_without_our_frames

    def let_python_end(self) -> None:
        """Leave the end to Python; unfreeze all objects first if one of them may need to be collected.

        What was imported before the fork is frozen (``gc.freeze``): to search it costs each worker of
        a torch job 0.5 s and 100 MB. But cycles with a frozen object are not collected: the buffer of
        a file in such a cycle would never be written.
        """
        if self._torch is not None:
            self._torch.show()
        try:
            may_stay_frozen = (
                self._imports_are_known and not other_threads_run() and not has_destructors_to_run()
            )
        except Exception:  # a class of the script's may answer in any way
            may_stay_frozen = False
        if not may_stay_frozen:
            gc.unfreeze()
        self._ends_at_once = may_stay_frozen and bool(self.namespace.get(ENDS_AT_ONCE))

    def end_at_once(self) -> None:
        """End the process after all exit handlers, if the script allows it, as multiprocessing does.

        To free each object costs each worker of a torch job 0.25 s.
        """
        if not self._ends_at_once:
            return
        try:
            # What C code has printed.
            import ctypes

            ctypes.CDLL(None).fflush(None)
            sys.stdout.flush()
            sys.stderr.flush()
        except Exception:  # Python tries again, and says so
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
    """Tell whether an object made since the fork has a destructor, as every file has."""
    # get_objects leaves frozen objects out. By type(), not isinstance: ``__class__`` may run code.
    kinds = {id(kind): kind for kind in map(type, gc.get_objects())}
    return any("__del__" in vars(base) for kind in kinds.values() for base in kind.__mro__)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code of a process whose script ends with ``error``."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def renew_random_state() -> None:
    """Seed again what numpy, torch and multiprocessing seed at random when they are imported.

    ``random`` does so itself after a fork; ``tempfile``, ``uuid`` and ``secrets`` read new random bytes.
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
