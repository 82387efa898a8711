"""How a script runs without a frame of ours beneath it, and how its process ends.

A Python function that called the script would show: as the last line of ``traceback.print_stack``,
as ``inspect.stack()[-1]``, as what a warning blames. So nobody calls it. The worker raises a
``Leap``, all our frames unwind, and Python's own C code, which takes it for a SystemExit, asks it
for its ``code``: a property made of C functions only, which call what is in ``steps`` one after the
other. The script is the first of them. An exception that leaves it must not end these C functions:
it runs as a weak reference's callback (``Guarded``), whose exceptions Python hands to
``sys.unraisablehook``. So does whatever else is the user's own: the hook that prints an exception,
the wait for threads, and what is registered with ``atexit``.

What follows is the end of a process as Py_FinalizeEx (CPython, Python/pylifecycle.c) has it, except
that modules which were imported before the fork are left alone: to take them apart costs 0.16 s and
copies 120 MB of pages for torch.

What a program can tell, if it looks: the depth of recursion that is left is 7 less, and a trace
function that is still set at the end sees the functions below.
"""

from __future__ import annotations

import _functools  # type: ignore[import-not-found]
import _operator
import _weakref
import atexit
import gc
import io
import os
import sys

from .libc import exit_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Sequence
    from typing import Any

    from .departures import Departure
else:
    import _signal as signal

CODE_OF_AN_EXCEPTION = 1
CODE_OF_A_FAILED_FLUSH = 120
"""As Py_Exit has it: what was printed could not be written."""

_call = _operator.methodcaller("__call__")
_IS_ATEXIT_SHARED = sys.version_info >= (3, 10)
"""Before, each import of ``atexit`` had functions of its own, and those of the last one were called."""


class _Trigger:
    """Whose end starts what is guarded."""


class _Reference(_weakref.ref):  # type: ignore[type-arg]
    """To the trigger; its ``run`` is what is guarded."""

    run: Callable[[], object]


class Guarded:
    """A C function, or one of the user's own, that may raise without ending who calls it.

    Calling ``start`` runs no Python code of ours.
    """

    def __init__(self, run: Callable[[], object], failed: Callable[[BaseException], None]) -> None:
        """Take what to run, and who is told of an exception that leaves it."""
        trigger = _Trigger()
        self.failed = failed
        self.callback = _operator.methodcaller("run")
        self._reference = _Reference(trigger, self.callback)
        self._reference.run = run
        self._holder = [trigger]
        self.start: Callable[[], None] = self._holder.clear

    def forget(self) -> None:
        """Hold nothing of it any longer, nor of what has left it."""
        del self._reference.run
        self.failed = _ignore


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

    code = property(_operator.methodcaller("take"))

    def __init__(
        self,
        script: Callable[[], object],
        namespace: dict[str, Any],
        names_to_leave: Sequence[str],
        departure: Departure,
    ) -> None:
        """Prepare the steps.

        Args:
            script: a C function, or the function that Python itself would call.
            namespace: of ``__main__``.
            names_to_leave: what Python takes out of it when the script is over.
            departure: where to note that.

        """
        super().__init__()
        self.namespace = namespace
        self.names_to_leave = names_to_leave
        self.departure = departure
        self.preloaded = Preloaded()
        self.exit_code = 0
        self.guarded = [Guarded(script, self.script_failed)]
        self.steps: list[Callable[[], object]] = [
            self.guarded[0].start,
            self.leave_script,
            self.end,
        ]
        # None of them returns anything true, so that ``any`` comes to the last, which never returns.
        self.__dict__["take"] = _functools.partial(any, map(_call, self.steps))
        _SysModule.scripts_own = sys.unraisablehook
        sys.unraisablehook = self.hear_exception
        sys.__class__ = _SysModule

    def hear_exception(self, unraisable: Any) -> None:  # noqa: ANN401 - sys.UnraisableHookArgs
        """Take what has left something guarded; hand on all else that Python can raise nowhere."""
        guarded = next((g for g in self.guarded if g.callback is unraisable.object), None)
        if guarded is None:
            hook = _SysModule.scripts_own
            if hook is not None:
                hook(unraisable)
            return
        error = unraisable.exc_value
        if error is None:
            error = unraisable.exc_type()
        error.__traceback__ = unraisable.exc_traceback
        del unraisable
        guarded.failed(error)

    def next(self, run: Callable[[], object], failed: Callable[[BaseException], None]) -> None:
        """Have something guarded run as the next step."""
        guarded = Guarded(run, failed)
        self.guarded.append(guarded)
        # The last step but those that are known: the C function above reads the list as it goes.
        self.steps.insert(self.steps.index(self.leave_script), guarded.start)

    def script_failed(self, error: BaseException) -> None:
        """Tell of what has left the script, as Python does (_PyErr_PrintEx, pythonrun.c)."""
        if isinstance(error, SystemExit):
            self.exit_code = exit_code_of(error)
            return
        interrupted = isinstance(error, KeyboardInterrupt)
        self.exit_code = -signal.SIGINT if interrupted else CODE_OF_AN_EXCEPTION
        # Before the hook, which may take its time.
        self.departure.note(self.exit_code)
        sys.last_type, sys.last_value = type(error), error
        sys.last_traceback = error.__traceback__
        if sys.version_info >= (3, 12):
            sys.last_exc = error
        hook = getattr(sys, "excepthook", None)
        if hook is None:
            sys.stderr.write("sys.excepthook is missing\n")
            hook = sys.__excepthook__
        call = _functools.partial(hook, type(error), error, error.__traceback__)
        self.next(call, _functools.partial(self.hook_failed, error))

    def hook_failed(self, error: BaseException, another: BaseException) -> None:
        """Tell of both: what has left the script, and what has left the hook for that."""
        if isinstance(another, SystemExit):
            self.exit_code = exit_code_of(another)
            return
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(another), another, another.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)

    def leave_script(self) -> None:
        """Let go of the script; wait for threads, and call what is registered with ``atexit``."""
        self.departure.note(self.exit_code)
        for guarded in self.guarded:
            guarded.forget()
        for name in self.names_to_leave:
            self.namespace.pop(name, None)
        self.namespace = {}
        last = self.steps.index(self.end)
        threading = sys.modules.get("threading")
        if threading is not None:
            shutdown = getattr(
                threading, "_shutdown", _functools.partial(getattr, threading, "_shutdown")
            )
            when = "on threading shutdown:" if sys.version_info >= (3, 13) else f"in: {threading!r}"
            wait = Guarded(shutdown, _functools.partial(tell_ignored, when))
            self.guarded.append(wait)
            self.steps.insert(last, wait.start)
            last += 1
        # Before Python 3.10 it raised the last error again, which it had printed.
        ours = atexit._run_exitfuncs  # noqa: SLF001 - what Python itself calls
        last_import = None if _IS_ATEXIT_SHARED else sys.modules.get("atexit")
        exits = Guarded(getattr(last_import, "_run_exitfuncs", ours), _ignore)
        self.guarded.append(exits)
        self.steps.insert(last, exits.start)

    def end(self) -> None:
        """Let go of what the script has made, write out what is printed, and exit."""
        sys.__class__ = type(os)
        sys.unraisablehook = _SysModule.scripts_own
        flushed = flush_streams()
        if gc.isenabled():
            # It also brings objects into the order in which they must be finalized, the outer ones
            # first: a file's text is written before the file is closed.
            gc.collect()
        # Python stops daemon threads here. We can't, and they must not meet modules without content.
        if len(sys._current_frames()) == 1:  # noqa: SLF001 - there is no other way to ask
            self.preloaded.clear_all_others()
        else:
            flush_files()
        flushed = flush_streams() and flushed
        if self.exit_code < 0:
            die_of(-self.exit_code)
        exit_process(self.exit_code if flushed else CODE_OF_A_FAILED_FLUSH)


def exit_code_of(error: SystemExit) -> int:
    """Return what ``sys.exit`` was given; a text is printed (handle_system_exit, pythonrun.c)."""
    code: object = error
    try:
        code = error.code
    except BaseException:  # noqa: BLE001 - as Python has it: then the exception itself is told
        code = error
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


def tell_ignored(when: str, error: BaseException) -> None:
    """Print what Python prints of an exception that nobody can take."""
    if sys.stderr is not None:
        sys.stderr.write(f"Exception ignored {when}\n")
        sys.__excepthook__(type(error), error, error.__traceback__)


def _ignore(_: BaseException) -> None:
    """Ignore what is told already."""


def flush_streams() -> bool:
    """Write out standard output and error; return whether that worked (flush_std_files)."""
    flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
        except BaseException as error:  # noqa: BLE001 - as Python has it
            flushed = False
            if stream is sys.stdout:
                error.__traceback__ = None
                tell_ignored(f"in: {stream!r}", error)
    return flushed


def flush_files() -> None:
    """Write out what is in the buffers of files that the script has left open."""
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
        for file in [thing for thing in gc.get_objects() if isinstance(thing, kind)]:
            try:
                file.flush()
            except (OSError, ValueError):
                continue


class Preloaded:
    """The modules that were imported before the fork."""

    def __init__(self) -> None:
        """Note them, and how many names each has."""
        modules = {name: m for name, m in sys.modules.items() if name != "__main__"}
        self._sizes = {name: len(getattr(m, "__dict__", ())) for name, m in modules.items()}

    def clear_all_others(self) -> None:
        """Let go of all other modules, as finalize_modules does (pylifecycle.c)."""
        for name in ("ps1", "ps2", "last_exc", "last_type", "last_value", "last_traceback"):
            if name in sys.__dict__:
                sys.__dict__[name] = None
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        alive: list[Callable[[], Any]] = []
        module: Any = None
        for name in [name for name in sys.modules if name not in self._sizes]:
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
        self._clear_what_was_added()
        gc.collect()

    def _clear_what_was_added(self) -> None:
        """Set to None what the script has put into modules that stay."""
        # As finalize_modules has it: builtins before all else, sys behind it.
        for name in sorted(self._sizes, key=lambda name: (name != "builtins", name == "sys")):
            size = self._sizes[name]
            namespace = getattr(sys.modules.get(name), "__dict__", {})
            if len(namespace) > size:
                for added in list(namespace)[size:]:
                    namespace[added] = None


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
