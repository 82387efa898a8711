"""How a script runs without a frame of ours beneath it, and how its process ends.

A Python function that called the script would show: as the last line of ``traceback.print_stack``,
as ``inspect.stack()[-1]``, as what a warning blames. So nobody calls it. The worker raises a
``Leap``, all our frames unwind, and Python's own C code, which takes it for a SystemExit, asks it
for its ``code``: a property made of C functions only, which call what is in ``steps`` one after the
other. The script is the first of them. An exception that leaves it must not end these C functions:
the script runs as a weak reference's callback, whose exceptions Python hands to
``sys.unraisablehook``.

What follows is the end of a process as Py_FinalizeEx (CPython, Python/pylifecycle.c) has it, except
that modules which were imported before the fork are left alone: to take them apart costs 0.16 s and
copies 120 MB of pages for torch.
"""

from __future__ import annotations

import _functools  # type: ignore[import-not-found]
import _operator
import _weakref
import atexit
import gc
import os
import sys

from .libc import exit_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Collection
    from typing import Any

    from .departures import Departure
else:
    import _signal as signal

CODE_OF_AN_EXCEPTION = 1
CODE_OF_A_FAILED_FLUSH = 120
"""As Py_Exit has it: what was printed could not be written."""

_call = _operator.methodcaller("__call__")
_exit_functions = atexit._run_exitfuncs  # noqa: SLF001 - what Python itself calls


class _Trigger:
    """Whose end starts the script."""


class _Reference(_weakref.ref):  # type: ignore[type-arg]
    """To the trigger; its ``run`` is the script."""

    run: Callable[[], object]


class _SysModule(type(sys)):  # type: ignore[misc]
    """``sys`` while a script runs in place: its ``unraisablehook`` is not yet ours for the script."""

    scripts_own: Any = None

    @property
    def unraisablehook(self) -> Any:  # noqa: ANN401 - what the script has set
        """Return the hook of the script's."""
        return type(self).scripts_own

    @unraisablehook.setter
    def unraisablehook(self, hook: Any) -> None:  # noqa: ANN401 - as above
        type(self).scripts_own = hook


_SysModule.__name__ = _SysModule.__qualname__ = "module"
_SysModule.__module__ = "builtins"


class Leap(SystemExit):
    """Runs a script once it is raised through our last frame; the process ends with it."""

    def __init__(
        self, script: Callable[[], object], preloaded: Collection[str], departure: Departure
    ) -> None:
        """Take the script, the modules that were imported before the fork, and where to note its end.

        ``script`` must be a C function, or the function that Python itself would call.
        """
        super().__init__()
        self.preloaded = preloaded
        self.departure = departure
        self.exit_code = 0
        trigger = _Trigger()
        self.callback = _operator.methodcaller("run")
        self.reference = _Reference(trigger, self.callback)
        self.reference.run = script
        self.holder = [trigger]
        self.steps: list[Callable[[], object]] = [
            self.holder.clear,
            self.forget_script,
            self.wait_for_threads,
            _exit_functions if sys.version_info >= (3, 10) else self.call_exit_functions,
            self.end,
        ]
        # None of them returns anything true, so that ``any`` comes to the last, which never returns.
        self.__dict__["take"] = _functools.partial(any, map(_call, self.steps))
        _SysModule.scripts_own = sys.unraisablehook
        sys.unraisablehook = self.hear_exception
        sys.__class__ = _SysModule

    code = property(_operator.methodcaller("take"))

    def hear_exception(self, unraisable: Any) -> None:  # noqa: ANN401 - sys.UnraisableHookArgs
        """Take what has left the script; hand on all else that Python can raise nowhere."""
        if unraisable.object is not self.callback:
            hook = _SysModule.scripts_own
            if hook is not None:
                hook(unraisable)
            return
        self.departure.note()
        error = unraisable.exc_value
        if error is None:
            error = unraisable.exc_type()
        if unraisable.exc_traceback is not None:
            error = error.with_traceback(unraisable.exc_traceback)
        del unraisable
        self.exit_code = exit_code_of(error)

    def forget_script(self) -> None:
        """Note that the script is over, and hold nothing of it any longer."""
        self.departure.note()
        del self.reference.run
        sys.__class__ = type(os)
        sys.unraisablehook = _SysModule.scripts_own

    def wait_for_threads(self) -> None:
        """Wait for all threads that are no daemons."""
        threading = sys.modules.get("threading")
        if threading is not None:
            try:
                threading._shutdown()  # noqa: SLF001 - what Python itself calls
            except BaseException:  # noqa: BLE001 - as Python has it: told, and no reason to stop
                sys.excepthook(*sys.exc_info())

    def call_exit_functions(self) -> None:
        """Call what was registered with ``atexit``; its errors have been printed."""
        try:
            _exit_functions()
        except BaseException:  # noqa: BLE001, S110 - told already
            pass

    def end(self) -> None:
        """Let go of what the script has made, write out what is printed, and exit."""
        flushed = flush_streams()
        # Python stops daemon threads here. We can't, and they must not meet modules without content.
        if len(sys._current_frames()) == 1:  # noqa: SLF001 - there is no other way to ask
            clear_modules(self.preloaded)
        flushed = flush_streams() and flushed
        if self.exit_code < 0:
            die_of(-self.exit_code)
        exit_process(self.exit_code if flushed else CODE_OF_A_FAILED_FLUSH)


def exit_code_of(error: BaseException) -> int:
    """Tell of what has left the script as Python does; return the exit code, or minus a signal."""
    if isinstance(error, SystemExit):
        return exit_code_of_system_exit(error)
    try:
        print_exception(error)
    except SystemExit as another:  # raised by the hook
        return exit_code_of_system_exit(another)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else CODE_OF_AN_EXCEPTION


def exit_code_of_system_exit(error: SystemExit) -> int:
    """Return what ``sys.exit`` was given; a text is printed (handle_system_exit, pythonrun.c)."""
    code: object = error
    try:
        code = error.code
    except BaseException:  # noqa: BLE001, S110 - as Python has it: then the exception itself is told
        pass
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    if sys.stderr is not None:
        try:
            sys.stderr.write(str(code) + "\n")
            sys.stderr.flush()
        except BaseException:  # noqa: BLE001, S110 - as Python has it
            pass
    return CODE_OF_AN_EXCEPTION


def print_exception(error: BaseException) -> None:
    """Have ``sys.excepthook`` tell of an exception (_PyErr_PrintEx, pythonrun.c)."""
    sys.last_type, sys.last_value = type(error), error
    sys.last_traceback = error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as another:  # noqa: BLE001 - of the hook's own
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(another), another, another.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def flush_streams() -> bool:
    """Write out standard output and error; return whether that worked (flush_std_files)."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except BaseException as error:  # noqa: BLE001 - as Python has it
            flushed = False
            if stream is sys.stdout and sys.stderr is not None:
                sys.stderr.write(f"Exception ignored in: {stream!r}\n")
                sys.__excepthook__(type(error), error, None)
    return flushed


def clear_modules(preloaded: Collection[str]) -> None:
    """Let go of all modules but ``preloaded``, as finalize_modules does (pylifecycle.c)."""
    for name in ("ps1", "ps2", "last_exc", "last_type", "last_value", "last_traceback"):
        if name in sys.__dict__:
            sys.__dict__[name] = None
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    alive: list[Callable[[], Any]] = []
    module: Any = None
    for name in [name for name in sys.modules if name not in preloaded]:
        module = sys.modules.pop(name)
        try:
            alive.append(_weakref.ref(module))
        except TypeError:
            continue
    module = None
    gc.collect()
    for reference in reversed(alive):
        module = reference()
        if isinstance(module, type(os)):
            clear_module(module.__dict__)
    module = None
    gc.collect()


def clear_module(namespace: dict[str, Any]) -> None:
    """Set all in a module to None, private names first (_PyModule_ClearDict, moduleobject.c)."""
    for private in (True, False):
        for name in list(namespace):
            if not isinstance(name, str) or name == "__builtins__":
                continue
            if not private or (name.startswith("_") and not name.startswith("__")):
                namespace[name] = None


def die_of(number: int) -> None:
    """End with signal ``number``, as a shell expects after Ctrl-C (exit_sigint, Modules/main.c)."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
