"""The run of a script in a forked worker: what ``__main__`` executes, and how its failure is noted."""

from __future__ import annotations

import gc
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Sequence
    from types import CodeType, TracebackType
    from typing import Any
    from warnings import WarningMessage

    from .script_ends import ScriptEnd
else:
    import _signal as signal


class ScriptRun:
    """Code to execute, and what is known of its end."""

    def __init__(  # noqa: PLR0913 - what a worker knows of its script
        self,
        code: CodeType,
        namespace: dict[str, Any],
        *,
        frames: int,
        end: ScriptEnd | None = None,
        is_known: bool = False,
        blocked: Collection[int] = (),
        said: Sequence[WarningMessage] = (),
    ) -> None:
        """Take the code and its namespace.

        Args:
            code: the script, compiled.
            namespace: what it is executed in.
            frames: how many frames of ours lie beneath those of the script.
            end: where a failure is noted; None: nowhere.
            is_known: all that was imported before the fork is on the verified list.
            blocked: the signals that the script finds blocked.
            said: what the compiler has warned of.

        """
        self.code = code
        self.namespace = namespace
        self._frames = frames
        self._end = end
        self._is_known = is_known
        self._blocked = blocked
        self._said = said

    def begin(self) -> None:
        """Let signals in, which were blocked since the fork, and print the compiler's warnings.

        The last step, within the statement that executes the script: Ctrl-C ends a script that has
        not begun as one that has.
        """
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        if self._said:
            import warnings

            for one in self._said:
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)

    def note_failure(self, error: BaseException) -> None:
        """Note when the script failed; have its traceback begin with the script.

        Called while ``error`` leaves the script, before Python prints it. A traceback is printed by
        ``sys.excepthook``, ours or the script's own.
        """
        # After a KeyboardInterrupt, Python ends the process with SIGINT, which says it all.
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

        # Called once, by Python, which also says what to do if a hook fails, and how to end.
        sys.excepthook = print_without_our_frames

    def let_python_end(self) -> None:
        """Leave the end to Python, with all objects given to the collector if one may need that.

        What was imported before the fork is frozen (``gc.freeze``): to look through it costs each
        worker of a torch job 0.5 s and 100 MB. But cycles with a frozen object are not collected: a
        file that hangs on one would never be written out.
        """
        try:
            may_stay_frozen = (
                self._is_known and not other_threads_run() and not has_destructors_to_run()
            )
        except Exception:  # noqa: BLE001 - a class of the script's may answer in any way
            may_stay_frozen = False
        if not may_stay_frozen:
            gc.unfreeze()


def other_threads_run() -> bool:
    """Tell whether threads of Python's other than this one run, which may open files yet."""
    # A script may have a threading.py of its own.
    count = getattr(sys.modules.get("threading"), "active_count", None)
    return count is not None and count() > 1


def has_destructors_to_run() -> bool:
    """Tell whether anything made since the fork has a destructor: all files have, for instance."""
    # The collector lists no frozen objects. By type(), not isinstance: some objects run code when
    # they are asked for their class.
    kinds = {id(kind): kind for kind in map(type, gc.get_objects())}
    return any("__del__" in vars(base) for kind in kinds.values() for base in kind.__mro__)


def exit_code_of(error: BaseException) -> int:
    """Return the exit code that Python gives to a process whose script ``error`` leaves."""
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def run_of_text(text: str) -> ScriptRun:
    """Return the run of a text of Python code, for a process that tries itself."""
    return ScriptRun(compile(text, "<self-test>", "exec"), {"__name__": "__main__"}, frames=1)


def renew_what_python_draws() -> None:
    """Draw anew what an interpreter, numpy and torch draw by chance when they are imported.

    ``random`` does so itself after a fork; ``tempfile``, ``uuid`` and ``secrets`` draw when asked.
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
