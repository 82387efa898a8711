"""The state of this process that imports must not change if workers are forked afterwards."""

from __future__ import annotations

import _signal as signal
import os
import sys

from ..other_processes import children_of, text_of
from ..this_process import flush_all, status_of_this_process
from .interpreter_hazards import tracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/xpu")

_OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33, which the C library uses for its threads (nptl(7))."""

SURVIVES_A_FORK = frozenset({"jemalloc_bg_thd"})
"""Names of threads that their library starts again in a forked child (jemalloc)."""


class ProcessState:
    """The state of this process when this object was constructed."""

    def __init__(self) -> None:
        self._descriptors = frozenset(_descriptors())
        self._shared = frozenset(_memory_shared_with_children())
        self._kept = list(_kept())

    def changes(self) -> str:
        """Return what modules imported since then have changed that a fork would break, or ""."""
        opened = [path for name, path in _descriptors().items() if name not in self._descriptors]
        # A driver opens other descriptors before its device, which is the reason to name.
        for path in (*opened, *_mapped_paths()):
            if path.startswith(DEVICES):
                return f"a module uses a GPU ({path})"
        if opened:
            return f"a module left {opened[0]} open"
        for shared in _memory_shared_with_children():
            if shared not in self._shared:
                return f"a module made memory or a lock that all ranks would share ({shared})"
        children = children_of(os.getpid())
        if children:
            return f"a module started process {children[0]}"
        for (name, before), (_, now) in zip(self._kept, _kept()):
            if before != now:
                return f"a module changed {name}"
        return tracer() or _threads_after_a_fork()


def _kept() -> Iterator[tuple[str, object]]:
    yield "the folder that it runs in", os.getcwd()
    yield "the umask", status_of_this_process("Umask")
    yield "its limits", text_of("/proc/self/limits")
    yield "the CPUs that it may use", os.sched_getaffinity(0)
    for number in signal.valid_signals():
        yield f"the handler of signal {int(number)}", signal.getsignal(number)
    for key in ("SigCgt", "SigIgn", "SigBlk"):
        mask = int(status_of_this_process(key) or "0", 16)
        yield "the signals it catches", (key, mask & ~_OF_THE_C_LIBRARY)
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        yield "its timers", signal.getitimer(timer) == (0.0, 0.0)


def _descriptors() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue  # the one of the listing itself
    return found


def _mapped_paths() -> Iterator[str]:
    for line in text_of("/proc/self/maps").splitlines():
        if "/" in line:
            yield line[line.find("/") :]


def _memory_shared_with_children() -> Iterator[str]:
    """Yield each mapping that is shared and writable (/proc/PID/maps: proc(5)).

    ``multiprocessing.Lock`` and ``mmap(-1)`` make such mappings.
    """
    for line in text_of("/proc/self/maps").splitlines():
        addresses, permissions, _offset, _device, _inode, *path = line.split(None, 5)
        if permissions[1] == "w" and permissions[3] == "s":
            yield " ".join([addresses, *path])


def _threads_after_a_fork() -> str:
    """Return a thread or a GPU context that exists after a fork, or "".

    One fork is tried: OpenBLAS and similar libraries end their threads before a fork and start them
    again when needed.
    """
    flush_all()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    # True only if a context exists, which a forked child could not use.
    for name in ("torch.cuda", "torch.xpu"):
        is_initialized = getattr(sys.modules.get(name), "is_initialized", None)
        if is_initialized is not None and is_initialized():
            return "a module uses a GPU"
    own = str(os.getpid())
    for thread in os.listdir("/proc/self/task"):
        if thread != own:
            name = text_of(f"/proc/self/task/{thread}/comm").strip()
            if name not in SURVIVES_A_FORK:
                return f"a module started a thread ({name})"
    return ""
