"""What makes it unsafe to fork workers that go on: each reason in words."""

from __future__ import annotations

import gc
import os
import sys

from .libc import flush_all
from .proc import children_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any
else:
    import _signal as signal

DANGEROUS_VARIABLES = {
    **dict.fromkeys(
        ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY"),
        "libraries bind threads when they are loaded, before the worker is bound",
    ),
    **dict.fromkeys(("LD_PRELOAD", "LD_AUDIT"), "a library is injected"),
    **dict.fromkeys(("COVERAGE_PROCESS_START", "COV_CORE_SOURCE"), "coverage is measured"),
    **dict.fromkeys(
        (
            *("PYTHONINSPECT", "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONDUMPREFS"),
            *("PYTHONTRACEMALLOC", "PYTHONPERFSUPPORT", "PYTHONMALLOCSTATS"),
        ),
        "the interpreter itself is being looked at",
    ),
}
DEBUGGERS = ("pydevd", "_pydevd_bundle", "debugpy", "coverage", "pyinstrument", "scalene")
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/xpu")
_OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33, which threads of the C library speak by (nptl(7))."""

QUIET_FILES = ("/dev/null", "/dev/urandom", "/dev/random")


def before_preloading(environ: Mapping[str, str], unsettled: Mapping[str, object]) -> str:
    """Return why this interpreter is none to fork from, whatever it imports; "" if it is one."""
    for name, why in DANGEROUS_VARIABLES.items():
        if environ.get(name):
            return f"{name} is set: {why}"
    for name in DEBUGGERS:
        if name in sys.modules:
            return f"{name} is at work"
    customize = sys.modules.get("sitecustomize") or sys.modules.get("usercustomize")
    if customize is not None and _mentions(getattr(customize, "__file__", None), unsettled):
        return f"{customize.__file__} looks at a variable that each worker gets its own"
    return _tracer() or _extra_threads().replace("a module", "something")


def _mentions(path: object, names: Mapping[str, object]) -> bool:
    if not isinstance(path, str):
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return True
    return any(name in text for name in names)


def _tracer() -> str:
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger or a profiler is at work"
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for number in range(6):
            tool = monitoring.get_tool(number)
            if tool is not None:
                return f"{tool} is at work"
    if _status("TracerPid") not in ("0", ""):
        return f"process {_status('TracerPid')} traces this one"
    return ""


class State:
    """What modules must leave as it was."""

    def __init__(self) -> None:
        """Note how things are now."""
        self._descriptors = frozenset(_descriptors())
        self._kept = list(_kept())
        self._chances = _Chances()

    def changes(self) -> str:
        """Return what modules that were imported since have done that a fork would break, or ""."""
        for descriptor, path in _descriptors().items():
            if descriptor not in self._descriptors and path not in QUIET_FILES:
                if path.startswith(DEVICES):
                    return f"a module uses a GPU ({path})"
                return f"a module left {path} open"
        device = _mapped_device()
        if device:
            return f"a module uses a GPU ({device})"
        children = children_of(os.getpid())
        if children:
            return f"a module started process {children[0]}"
        for (name, before), (_, now) in zip(self._kept, _kept()):
            if before != now:
                return f"a module changed {name}"
        if getattr(sys.modules.get("tempfile"), "_name_sequence", None) is not None:
            # All ranks would share it, and the first to end removes it.
            return "a module made a temporary file or folder"
        return _tracer() or self._chances.changes() or _extra_threads_after_fork()


def _kept() -> Iterator[tuple[str, object]]:
    yield "the folder that it runs in", os.getcwd()
    yield "the umask", _status("Umask")
    yield "its limits", _text("/proc/self/limits")
    for number in signal.valid_signals():
        yield f"what signal {int(number)} does", signal.getsignal(number)
    for key in ("SigCgt", "SigIgn", "SigBlk"):
        mask = int(_status(key) or "0", 16)
        yield "the signals it catches", (key, mask & ~_OF_THE_C_LIBRARY)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        yield "its timers", signal.getitimer(timer) == (0.0, 0.0)


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the listing's own
    return found


def _mapped_device() -> str:
    for line in _text("/proc/self/maps").splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if path.startswith(DEVICES):
            return path
    return ""


DRAW_WHAT_NOBODY_SHARES = frozenset({"rich.style"})
"""Modules that draw a number when they are imported, which may be the same on all ranks."""


class _Chances:
    """Generators that all ranks would share, or that forget in a worker what they were seeded with.

    How ``random`` is when it has just been imported is seen by looking on: that it was seeded later
    does not show in itself.
    """

    def __init__(self) -> None:
        self._fresh = _state_of_random()
        self._fresh_of_torch: Any = None
        self._stop_watching_seeds = watch_seeds()
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ANN401, ARG002 - importlib's own
        """Look on where certain modules are imported; that is done as ever."""
        if name not in {"random", "torch"} and name not in DRAW_WHAT_NOBODY_SHARES:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        loader: Any = spec and spec.loader
        if hasattr(loader, "__dict__"):
            execute = loader.exec_module

            def execute_and_look(module: object) -> None:
                del loader.exec_module
                before = _state_of_random()
                execute(module)
                if name == "random":
                    self._fresh = _state_of_random()
                    self._stop_watching_seeds = watch_seeds()
                elif name == "torch":
                    self._fresh_of_torch = sys.modules["torch"].get_rng_state()
                elif before is not None:
                    sys.modules["random"].setstate(before)

            loader.exec_module = execute_and_look
        return spec

    def changes(self) -> str:
        """Return whether one has been seeded or used; "" if none."""
        sys.meta_path.remove(self)
        self._stop_watching_seeds()
        mtrand: Any = sys.modules.get("numpy.random.mtrand")
        if mtrand is not None:
            used = mtrand._rand._bit_generator  # noqa: SLF001 - there is no public way to it
            seeds = getattr(used, "seed_seq", None) or getattr(used, "_seed_seq", None)
            state, fresh = used.state["state"], type(used)(seeds).state["state"]
            if state["pos"] != fresh["pos"] or (state["key"] != fresh["key"]).any():
                return "a module used or seeded numpy.random"
            kind = sys.modules["numpy.random.bit_generator"].BitGenerator
            # Not by isinstance: some objects warn of being asked for their class. There are 300,000.
            things = gc.get_objects()
            kinds = {one for one in set(map(type, things)) if issubclass(one, kind)}
            if sum(map(kinds.__contains__, map(type, things))) > 1:
                return "a module has a generator of numpy.random's of its own"
        if self._fresh_of_torch is not None:
            torch: Any = sys.modules["torch"]
            if not torch.equal(torch.get_rng_state(), self._fresh_of_torch):
                return "a module used or seeded torch's random numbers"
        return "" if _state_of_random() == self._fresh else "a module used or seeded random"


seeded_by_chance: list[Any] = []
"""Generators of ``random`` that modules have made while they were imported: each rank seeds its own."""


def watch_seeds() -> Callable[[], None]:
    """Note who is seeded by chance from now on; return what ends that."""
    kind: Any = getattr(sys.modules.get("random"), "Random", None)
    original = getattr(kind, "seed", None)
    if original is None:
        return lambda: None

    def seed(generator: Any, a: object = None, version: int = 2) -> None:  # noqa: ANN401 - random's
        original(generator, a, version)
        if any(generator is one for one in seeded_by_chance):
            seeded_by_chance.remove(generator)
        if a is None:
            seeded_by_chance.append(generator)

    def stop() -> None:
        kind.seed = original

    kind.seed = seed
    return stop


def _state_of_random() -> object:
    """Return the state of what the functions of ``random`` use; None where it has not been imported."""
    # A user's own module may have that name, too.
    instance: Any = getattr(sys.modules.get("random"), "_inst", None)
    return None if instance is None else instance.getstate()


def _extra_threads() -> str:
    count = len(os.listdir("/proc/self/task"))
    return "" if count == 1 else "a module started a thread"


def _extra_threads_after_fork() -> str:
    """Look for threads, and for libraries that notice a fork, by forking once.

    OpenBLAS and its like end their threads before a fork and start them again when needed.
    """
    flush_all()
    pid = os.fork()
    if pid == 0:
        os._exit(1 if _bad_fork() else 0)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        return "a module uses a GPU"
    return _extra_threads()


def _bad_fork() -> bool:
    """Tell whether torch would refuse a GPU in this child."""
    for name in ("torch.cuda", "torch.xpu"):
        asked = getattr(sys.modules.get(name), "_is_in_bad_fork", None)
        if asked is not None and asked():
            return True
    return False


def _status(key: str) -> str:
    for line in _text("/proc/self/status").splitlines():
        if line.startswith(key + ":"):
            return line[len(key) + 1 :].strip()
    return ""


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
