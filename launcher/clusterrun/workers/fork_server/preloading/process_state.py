"""What modules must leave as it was, for workers to be forked afterwards: each reason in words."""

from __future__ import annotations

import os
import sys

from ..system.libc import flush_all
from ..system.other_processes import children_of, status_of_this_process, text_of
from .interpreter_hazards import tracer

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
else:
    import _signal as signal

DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/", "/dev/accel", "/dev/xpu")

_OF_THE_C_LIBRARY = 0b11 << 31
"""Signals 32 and 33, which threads of the C library speak by (nptl(7))."""

SURVIVES_A_FORK = frozenset({"jemalloc_bg_thd"})
"""Threads, by name, that their library starts again in a child (jemalloc's handlers of fork)."""


class ProcessState:
    """The state of this process when it was made."""

    def __init__(self) -> None:
        """Note how things are now."""
        self._descriptors = frozenset(_descriptors())
        self._shared = frozenset(_memory_shared_with_children())
        self._kept = list(_kept())

    def changes(self) -> str:
        """Return what modules that were imported since have done that a fork would break, or ""."""
        for descriptor, path in _descriptors().items():
            if descriptor not in self._descriptors:
                if path.startswith(DEVICES):
                    return f"a module uses a GPU ({path})"
                return f"a module left {path} open"
        device = _mapped_device()
        if device:
            return f"a module uses a GPU ({device})"
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
        yield f"what signal {int(number)} does", signal.getsignal(number)
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
            continue  # the listing's own
    return found


def _mapped_device() -> str:
    for line in text_of("/proc/self/maps").splitlines():
        path = line[line.find("/") :] if "/" in line else ""
        if path.startswith(DEVICES):
            return path
    return ""


def _memory_shared_with_children() -> Iterator[str]:
    """Yield each mapping that is shared and may be written to, as /proc/PID/maps shows it (proc(5)).

    ``multiprocessing.Lock`` and ``mmap(-1)`` are such.
    """
    for line in text_of("/proc/self/maps").splitlines():
        addresses, permissions, _offset, _device, _inode, *path = line.split(None, 5)
        if permissions[1] == "w" and permissions[3] == "s":
            yield " ".join([addresses, *path])


def _threads_after_a_fork() -> str:
    """Look for threads, and for libraries that take part in a fork, by forking once.

    OpenBLAS and its like end their threads before a fork and start them again when needed.
    """
    flush_all()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    # Public, and true only where a context exists, which would be of no use in a child.
    for name in ("torch.cuda", "torch.xpu"):
        asked = getattr(sys.modules.get(name), "is_initialized", None)
        if asked is not None and asked():
            return "a module uses a GPU"
    own = str(os.getpid())
    for thread in os.listdir("/proc/self/task"):
        if thread != own:
            name = text_of(f"/proc/self/task/{thread}/comm").strip()
            if name not in SURVIVES_A_FORK:
                return f"a module started a thread ({name})"
    return ""
