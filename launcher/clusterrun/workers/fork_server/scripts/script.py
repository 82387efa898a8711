"""A script as the worker that runs it in place finds it: all that a fresh interpreter would hold."""

from __future__ import annotations

import faulthandler
import os
import sys

from ..preloading.quiet_compile import compile_quietly
from ..worker_signals import as_python_sets_them
from .script_run import ScriptRun, renew_what_python_draws

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any
    from warnings import WarningMessage

    from ..preloading.leading_imports import LeadingImports
    from .script_ends import ScriptEnd
else:
    import _signal as signal

_RUN_MODULE = "import runpy\nrunpy._run_module_as_main(name)\n"
"""What ``python -m`` does. The public ``runpy.run_module`` takes ``__main__`` away at the end, while
threads and exit handlers may still need it."""


class NotToBeRunInPlace(Exception):
    """This program has to be executed: the text says why."""

    def __init__(
        self, why: str, *, is_complaint: bool = False, is_end_of_job: bool = False
    ) -> None:
        """Take the reason, whether to print it even if nobody asks, and whether the job ends."""
        super().__init__(why)
        self.is_complaint = is_complaint
        self.is_end_of_job = is_end_of_job


class Script:
    """What ``PYTHON -u SCRIPT`` or ``PYTHON -u -m MODULE`` would run."""

    def __init__(
        self, command: list[str], fresh: Mapping[str, object], settled: Mapping[str, str]
    ) -> None:
        """Read the script.

        Args:
            command: the worker's program: interpreter, -u, and script or -m and module, arguments.
            fresh: what Python puts into the namespace of a script.
            settled: the variables of workers that are set before anything is imported.

        Raises:
            NotToBeRunInPlace: it is not a file with Python's source that compiles.

        """
        if command[2] == "-c":
            raise NotToBeRunInPlace(
                "--run-path asks for runpy, which has an interpreter of its own"
            )
        self.command = command
        self.fresh = fresh
        self.settled = settled
        self.imports_are_known = False
        """Whether only packages of the verified list were imported before the fork."""
        self.is_module = command[2] == "-m"
        self.name = command[3] if self.is_module else command[2]
        self.path = self.name if self.is_module else os.path.join(os.getcwd(), self.name)
        if sys.version_info < (3, 9) and not self.is_module:
            # Python 3.9 made it an absolute path.
            self.path = self.name
        self._stamp: tuple[int, ...] = ()
        self._warnings: list[WarningMessage] = []
        if self.is_module:
            self._code = compile(_RUN_MODULE, "<python -m>", "exec")
        else:
            self.read()

    def is_run_by(self, command: list[str]) -> bool:
        """Tell whether ``command`` is this script, with whatever arguments."""
        end = 4 if self.is_module else 3
        return command[:end] == self.command[:end]

    def read(self) -> bytes:
        """Compile the script unless it is as it was; return its source.

        Raises:
            NotToBeRunInPlace: as above.

        """
        try:
            if not os.path.isfile(self.path):
                raise NotToBeRunInPlace(f"{self.name} is no file with Python source")
            with open(self.path, "rb") as file:
                found = os.fstat(file.fileno())
                source = file.read()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._code, self._warnings = compile_quietly(source, self.path)
                self._stamp = stamp
        except OSError as error:
            raise NotToBeRunInPlace(f"{self.name}: {error.strerror}") from error
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise NotToBeRunInPlace(f"{self.name} does not compile") from error
        return source

    def refresh(self) -> None:
        """See to it that the script as it is now is run.

        Raises:
            NotToBeRunInPlace: it is no good any more.

        """
        if not self.is_module:
            self.read()

    def read_by(self, reading: LeadingImports) -> None:
        """Have the leading imports found."""
        if self.is_module:
            reading.read_module(self.name)
        else:
            reading.read_script(self.read(), self.path)

    def enter(self) -> None:
        """Give this process, which workers are forked from, what imports of the script may look at."""
        self._set_arguments(self.command)
        if not getattr(sys.flags, "safe_path", False):
            sys.path.insert(0, self.folder())
        # The folders of the fork server's own modules.
        own = os.path.dirname(os.path.dirname(__file__))
        for path in [path for path in sys.path_importer_cache if path.startswith(own)]:
            del sys.path_importer_cache[path]
        sys.modules["__main__"] = self.new_main()

    def _set_arguments(self, command: list[str]) -> None:
        # In place: a module may have kept the lists.
        sys.argv[:] = ["-m", *command[4:]] if self.is_module else command[2:]
        if hasattr(sys, "orig_argv"):  # since Python 3.10
            sys.orig_argv[:] = command

    def folder(self) -> str:
        """Return the first entry of sys.path."""
        return os.getcwd() if self.is_module else os.path.dirname(os.path.realpath(self.path))

    def new_main(self) -> ModuleType:
        """Return the module ``__main__`` with what Python puts there before it runs the script."""
        main = type(sys)("__main__")
        main.__dict__.clear()
        main.__dict__.update(self.fresh)
        main.__dict__["__doc__"] = None
        if "__annotations__" in self.fresh:
            main.__annotations__ = {}
        if self.is_module:
            # runpy fills in the rest.
            main.__dict__.pop("__file__", None)
            main.__dict__.pop("__cached__", None)
            main.__dict__["__loader__"] = None
        else:
            loader: Any = self.fresh["__loader__"]
            main.__dict__["__file__"] = self.path
            main.__dict__["__loader__"] = type(loader)("__main__", self.path)
        return main

    def _replace_main(self) -> ModuleType:
        """Return a ``__main__`` that is not frozen: the collector takes it apart at the end."""
        before, main = sys.modules["__main__"], self.new_main()
        for name, module in list(sys.modules.items()):
            # multiprocessing knows it by another name, too.
            if module is before:
                sys.modules[name] = main
        return main

    def prepare_worker(self, request: dict[str, Any], end: ScriptEnd) -> ScriptRun:
        """In a worker: become what a fresh interpreter is; return the run of the script.

        Args:
            request: what the agent asks for.
            end: where a failure of the script is noted.

        """
        set_variables(request["env"], self.settled)
        self._set_arguments(request["argv"])
        as_python_sets_them()
        faulthandler.register(signal.SIGQUIT, file=2, all_threads=True, chain=False)
        renew_what_python_draws()
        end.belong_to_this_process()
        main = self._replace_main()
        if self.is_module:
            namespace, frames = {"name": self.name}, 2
        else:
            namespace, frames = main.__dict__, 1
        return ScriptRun(
            self._code,
            namespace,
            frames=frames,
            end=end,
            is_known=self.imports_are_known,
            blocked=request["mask"],
            said=self._warnings,
        )


def set_variables(wanted: Mapping[str, str], settled: Mapping[str, str]) -> None:
    """Set a worker's variables, but keep what an import has made of one that was set before it.

    Args:
        wanted: the variables that this worker gets.
        settled: those that were set before anything was imported.

    """
    for name, value in wanted.items():
        if settled.get(name) != value:
            os.environ[name] = value
