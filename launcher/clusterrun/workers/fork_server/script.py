"""The user's script: reads and compiles it, and gives a forked worker the state of a fresh interpreter."""

from __future__ import annotations

import _signal as signal
import faulthandler
import os
import sys

from .hidden_modules import hidden_imports
from .script_run import ScriptRun, renew_random_state
from .worker_signals import set_as_python_does

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType
    from typing import Any
    from warnings import WarningMessage

    from .failure_notes import FailureNote
    from .messages import StartWorker
    from .preloading.preloaded_torch import PreloadedTorch
    from .preloading.reexec_cache import ReexecCache
    from .preloading.script_walk import ScriptWalk

with hidden_imports():
    # Here, because later the user's folders come first, and may have a ``warnings.py``.
    import warnings


_RUN_MODULE = "import runpy\nrunpy._run_module_as_main(name)\n"
"""This is what ``python -m`` does. The public ``runpy.run_module`` removes ``__main__`` at the end, but
threads and exit handlers may still need it."""


class CannotRunInPlace(Exception):
    """The script can't be run in forked workers; the text is the reason.

    ``must_warn`` and ``costs_time`` are those of the message ``Prepared``.
    """

    def __init__(self, why: str, *, must_warn: bool = False, costs_time: bool = True) -> None:
        super().__init__(why)
        self.must_warn = must_warn
        self.costs_time = costs_time


class Script:
    """The script of ``PYTHON -u SCRIPT``, or the module of ``PYTHON -u -m MODULE``."""

    def __init__(
        self,
        command: tuple[str, ...],
        script_namespace: Mapping[str, object],
        known_variables: Mapping[str, str],
    ) -> None:
        """Read the script.

        Args:
            command: of a worker: interpreter, -u, then the script, or -m and the module, and arguments.
            script_namespace: what Python puts into the namespace of a script.
            known_variables: the variables of workers that are set before anything is imported.

        Raises:
            CannotRunInPlace: it is not a file with Python source that compiles.

        """
        try:
            current_folder = os.getcwd()
        except FileNotFoundError:
            why = "the current folder has been deleted"
            raise CannotRunInPlace(why, must_warn=True) from None
        if command[2] == "-c":
            raise CannotRunInPlace("--run-path needs runpy, which needs a fresh interpreter")
        self.imports_are_known = False
        """Whether only packages of the verified list were imported before the fork."""
        self.printed = (b"", b"")
        """What the imports before the fork have printed to standard output and to standard error."""
        self.torch: PreloadedTorch | None = None
        """Torch, if it is hidden from the script until the script imports it."""
        self.reexec_cache: ReexecCache
        self._command = command
        self._script_namespace = script_namespace
        self._known_variables = known_variables
        self.is_module = command[2] == "-m"
        self._name = command[3] if self.is_module else command[2]
        self.path = self._name
        if sys.version_info >= (3, 9) and not self.is_module:
            # ``__file__`` is absolute since Python 3.9.
            self.path = os.path.join(current_folder, self._name)
        self._stamp: tuple[int, ...] = ()
        self._stamps: dict[str, tuple[int, ...]] = {}
        """Of the files whose text decided what is imported before the fork."""
        self.warnings: list[WarningMessage] = []
        """The compiler's."""
        if self.is_module:
            self.code = compile(_RUN_MODULE, "<python -m>", "exec")
        else:
            self._read()

    def is_run_by(self, command: tuple[str, ...]) -> bool:
        """Tell whether ``command`` runs this script, with any arguments."""
        end = 4 if self.is_module else 3
        return command[:end] == self._command[:end]

    def refresh(self) -> None:
        """Compile the script again if it has changed.

        Raises:
            CannotRunInPlace: it can't be read or compiled any more, or another text may need other imports
                before the fork.

        """
        for path, stamp in self._stamps.items():
            if _stamp_of(path) != stamp:
                raise CannotRunInPlace(f"{path} has changed")
        if not self.is_module:
            self._read()

    def note_files(self, paths: Iterable[str]) -> None:
        """Note the files whose text decided what is imported before the fork."""
        self._stamps = {path: _stamp_of(path) for path in paths}

    def _read(self) -> bytes:
        try:
            if not os.path.isfile(self.path):
                raise CannotRunInPlace(
                    f"{self._name} is not a file with Python source", costs_time=False
                )
            with open(self.path, "rb") as file:
                stamp = _stamp_of(file.fileno())
                source = file.read()
            if stamp != self._stamp:
                self.code, self.warnings = compile_quietly(source, self.path)
                self._stamp = stamp
        except OSError as error:
            raise CannotRunInPlace(f"{self._name}: {error.strerror}", costs_time=False) from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CannotRunInPlace(f"{self._name} does not compile", costs_time=False) from error
        return source

    def read_by(self, walk: ScriptWalk) -> None:
        """Let ``walk`` read the script."""
        if self.is_module:
            walk.read_module(self._name)
        else:
            walk.read_script(self._read(), self.path)

    def enter(self) -> None:
        """Set up, in the server, the search path, the arguments and ``__main__``: imports may read them."""
        own_folder = os.path.dirname(os.path.realpath(self.path))
        set_search_path(os.getcwd() if self.is_module else own_folder)
        set_arguments(self._command, is_module=self.is_module)
        sys.modules["__main__"] = self._new_main()

    def prepare_worker(
        self,
        request: StartWorker,
        failure_note: FailureNote,
        reexec: Callable[[str], None] | None,
    ) -> ScriptRun:
        """Give a worker the state of a fresh interpreter; return the run of the script.

        Args:
            request: of this worker.
            failure_note: where the worker notes that its script has failed.
            reexec: executes the worker's program for the reason given, and does not return; needed if
                ``torch`` is set.

        """
        for name, value in request.variables.items():
            # A value that an import has changed since stays.
            if self._known_variables.get(name) != value:
                os.environ[name] = value
        set_arguments(request.command, is_module=self.is_module)
        set_as_python_does()
        faulthandler.register(signal.SIGQUIT, file=2, all_threads=True, chain=False)
        renew_random_state()
        failure_note.set_owner()
        # A new one, which is not frozen, so the garbage collector can free it at the end.
        main = self._new_main()
        replace_main(main)
        if self.torch is not None and reexec is not None:
            self.torch.hide(reexec)
        namespace = {"name": self._name} if self.is_module else main.__dict__
        return ScriptRun(self, namespace, failure_note, request.blocked_signals)

    def _new_main(self) -> ModuleType:
        return new_main(self._script_namespace, "" if self.is_module else self.path)


def _stamp_of(file: str | int) -> tuple[int, ...]:
    """Return what changes with a file's text; nothing if it can't be read."""
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def compile_quietly(source: bytes, path: str, flags: int = 0) -> tuple[Any, list[WarningMessage]]:
    """Return the result of ``compile``, and its warnings, which the worker prints.

    Raises:
        SyntaxError: the text is not Python, or the user's filters make an error of a warning.
        ValueError: it has a zero byte.
        RecursionError, MemoryError: it is nested too deeply.

    """

    def compiled() -> Any:
        return compile(source, path, "exec", flags, dont_inherit=True)

    # ``catch_warnings`` looks ``warnings`` up in sys.modules.
    with hidden_imports():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            code = compiled()
        if caught:
            # The user's filters may raise an error. CPython also keeps the filters of its last warning.
            with warnings.catch_warnings(record=True):
                compiled()
    return code, list(caught or ())


def set_arguments(command: tuple[str, ...], *, is_module: bool) -> None:
    """Set sys.argv and sys.orig_argv for ``PYTHON -u SCRIPT ...`` or ``PYTHON -u -m MODULE ...``."""
    # In place, because modules may refer to the lists.
    sys.argv[:] = ["-m", *command[4:]] if is_module else command[2:]
    if hasattr(sys, "orig_argv"):  # since Python 3.10
        sys.orig_argv[:] = command


def set_search_path(first: str) -> None:
    """Put a folder first on sys.path, and remove the fork server's folders from the path cache."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, first)
    own = os.path.dirname(__file__)
    for path in [path for path in sys.path_importer_cache if path.startswith(own)]:
        del sys.path_importer_cache[path]


def new_main(script_namespace: Mapping[str, object], path: str) -> ModuleType:
    """Return a ``__main__`` for the script at ``path``; "" for a module that runpy runs."""
    main = type(sys)("__main__")
    namespace = main.__dict__
    namespace.clear()
    namespace.update(script_namespace)
    namespace["__doc__"] = None
    if "__annotations__" in script_namespace:
        main.__annotations__ = {}
    if path:
        loader: Any = script_namespace["__loader__"]
        namespace["__file__"] = path
        namespace["__loader__"] = type(loader)("__main__", path)
    else:
        # runpy sets the rest.
        namespace.pop("__file__", None)
        namespace.pop("__cached__", None)
        namespace["__loader__"] = None
    return main


def replace_main(new: ModuleType) -> None:
    """Replace ``__main__`` under all its names in sys.modules: multiprocessing adds one."""
    before = sys.modules["__main__"]
    for name, module in list(sys.modules.items()):
        if module is before:
            sys.modules[name] = new
