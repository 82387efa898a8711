"""A script as the worker that runs it in place finds it: all that a fresh interpreter would hold."""

from __future__ import annotations

import _functools  # type: ignore[import-not-found]
import faulthandler
import io
import os
import sys

from .hazards import seeded_by_chance
from .leap import Leap
from .process_memory_map import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Mapping
    from types import CodeType, ModuleType
    from typing import Any

    from .departures import Departure
    from .leading_imports import LeadingImports
else:
    import _signal as signal


class NotToBeRunInPlace(Exception):  # noqa: N818 - a finding, not a mistake
    """This program has to be executed: the text says why."""

    def __init__(self, why: str, *, is_complaint: bool = False) -> None:
        """Take the reason, and whether the user should hear it even if nobody asks."""
        super().__init__(why)
        self.is_complaint = is_complaint


class Script:
    """What ``PYTHON -u SCRIPT`` or ``PYTHON -u -m MODULE`` would run."""

    def __init__(self, command: list[str], fresh: Mapping[str, object]) -> None:
        """Read the script.

        Args:
            command: the worker's program: interpreter, -u, and script or -m and module, arguments.
            fresh: what Python puts into the namespace of a script.

        Raises:
            NotToBeRunInPlace: it is not a file with Python's source that compiles.

        """
        if command[2] == "-c":
            raise NotToBeRunInPlace(
                "--run-path asks for runpy, which has an interpreter of its own"
            )
        self.command = command
        self.fresh = fresh
        self.is_module = command[2] == "-m"
        self.name = command[3] if self.is_module else command[2]
        self.path = self.name if self.is_module else os.path.join(os.getcwd(), self.name)
        if sys.version_info < (3, 9) and not self.is_module:
            # Python 3.9 made it an absolute path.
            self.path = self.name
        self._stamp: tuple[int, ...] = ()
        self._code: CodeType | None = None
        if not self.is_module:
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
                self._code = compile(source, self.path, "exec", dont_inherit=True)
                self._stamp = stamp
        except OSError as error:
            raise NotToBeRunInPlace(f"{self.name}: {error.strerror}") from error
        except (SyntaxError, ValueError) as error:
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
        # Where our own modules were found; and Python asks each script whether it is an archive.
        sys.path_importer_cache.pop(os.path.dirname(__file__), None)
        asked = sys.path_importer_cache.pop(str(self.fresh["__file__"]), None)
        if not self.is_module:
            sys.path_importer_cache[self.path] = asked
        sys.modules["__main__"] = self.new_main()

    def _set_arguments(self, command: list[str]) -> None:
        sys.argv = ["-m", *command[4:]] if self.is_module else command[2:]
        if hasattr(sys, "orig_argv"):  # since Python 3.10
            sys.orig_argv = list(command)

    def folder(self) -> str:
        """Return the first entry of sys.path."""
        return os.getcwd() if self.is_module else os.path.dirname(os.path.realpath(self.path))

    def new_main(self) -> ModuleType:
        """Return the module ``__main__`` with what Python puts there before it runs the script."""
        import builtins  # noqa: PLC0415 - every interpreter has imported it

        main = type(sys)("__main__")
        main.__dict__.clear()
        main.__dict__.update(self.fresh)
        main.__dict__["__doc__"] = None
        main.__dict__["__builtins__"] = builtins
        loader = self.fresh["__loader__"]
        if self.is_module:
            # What runpy finds, and replaces.
            main.__dict__.pop("__file__", None)
            main.__dict__.pop("__cached__", None)
            main.__dict__["__loader__"] = sys.modules["_frozen_importlib"].BuiltinImporter
        else:
            main.__dict__["__file__"] = self.path
            main.__dict__["__loader__"] = type(loader)("__main__", self.path)  # type: ignore[call-arg]
        if "__annotations__" in self.fresh:
            main.__annotations__ = {}
        return main

    def prepare_worker(self, request: dict[str, Any], departure: Departure) -> Leap:
        """In a worker: become what a fresh interpreter is; return what runs the script."""
        for name, value in request["env"].items():
            os.environ[name] = value
        # Where the kernel can't, tools show the server's arguments: no reason not to train.
        show(request["argv"], os.environ)
        if request["argv"] != self.command:
            self._set_arguments(request["argv"])
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        faulthandler.register(signal.SIGQUIT, file=2, all_threads=True, chain=False)
        make_chances_own()
        make_main_thread_own()
        open_streams_anew()
        main = sys.modules["__main__"]
        if self.is_module:
            import runpy  # noqa: PLC0415 - as Python does now

            as_main = runpy._run_module_as_main  # type: ignore[attr-defined] # noqa: SLF001 - as Python
            run: Any = _functools.partial(as_main, self.name)
        else:
            run = _functools.partial(exec, self._code, main.__dict__)
        names_to_leave = () if self.is_module else ("__file__", "__cached__")
        return Leap(run, main.__dict__, names_to_leave, departure)


def open_streams_anew() -> None:
    """Make standard input, output and error as an interpreter finds them (create_stdio, pylifecycle.c).

    Those that the server was started with remember what they were on: another device.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, f"__{name}__")
        if old is None or getattr(sys, name) is not old:
            continue
        mode = "w" if descriptor else "r"
        raw: Any = io.FileIO(descriptor, mode, closefd=False)
        raw.name = f"<{name}>"
        buffer = raw if descriptor else io.BufferedReader(raw)
        stream: Any = io.TextIOWrapper(
            buffer,
            old.encoding,
            old.errors,
            "\n",
            line_buffering=old.line_buffering,
            write_through=old.write_through,
        )
        stream.mode = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def make_main_thread_own() -> None:
    """Have ``threading`` know the process's number: Python corrects all but that after a fork."""
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        threading.main_thread()._set_native_id()  # noqa: SLF001 - there is no public way


def make_chances_own() -> None:
    """Seed anew what each interpreter seeds at its start or at an import.

    ``random`` sees to itself after a fork; ``tempfile``, ``uuid`` and ``secrets`` do, too.
    """
    for generator in seeded_by_chance:
        generator.seed()
    mtrand = sys.modules.get("numpy.random.mtrand")
    if mtrand is not None:
        mtrand._rand.__init__()  # noqa: SLF001 - a fresh generator, in the object that all share
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        key = process.AuthenticationString(os.urandom(32))
        process.current_process()._config["authkey"] = key  # noqa: SLF001 - as at its import
