"""This process: descriptors, parent, CPUs, and what Python does not offer of the C library."""

from __future__ import annotations

import _signal as signal
import ctypes
import errno
import os
import sys

from .other_processes import text_of

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

# linux/mempolicy.h
MPOL_PREFERRED = 1
MPOL_BIND = 2
MPOL_PREFERRED_MANY = 5  # Linux 5.15

# asm/unistd.h: C libraries have no function for it.
_SET_MEMPOLICY = {
    "x86_64": 238,
    "aarch64": 237,
    "riscv64": 237,
    "loongarch64": 237,
    "ppc64le": 261,
    "s390x": 270,
}
_BITS_OF_A_LONG = 64

_LIBRARY = ctypes.CDLL(None, use_errno=True)
_LIBRARY.syscall.restype = ctypes.c_long
_LIBRARY.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_void_p]

unshare = _LIBRARY.unshare
mount = _LIBRARY.mount


def prctl(option: int, *arguments: int) -> int:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return int(_LIBRARY.prctl(option, *map(ctypes.c_ulong, padded)))


def refused_protections() -> list[str]:
    """Return the calls that containment needs and that a sandbox refuses, each with the reason.

    Trying them changes nothing: there is no child yet.
    """
    tried = {
        "PR_SET_CHILD_SUBREAPER": prctl(PR_SET_CHILD_SUBREAPER, 1),
        "PR_SET_PDEATHSIG": prctl(PR_SET_PDEATHSIG, 0),
    }
    why = os.strerror(ctypes.get_errno())
    return [f"{name} ({why})" for name, result in tried.items() if result != 0]


def set_mempolicy(policy: int, nodes: list[int]) -> int:
    """Set where this thread, and those it starts, take memory from; return 0 or an errno."""
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None or sys.maxsize < 1 << 32:
        return errno.ENOSYS
    mask = sum(1 << node for node in set(nodes))
    words = mask.bit_length() // _BITS_OF_A_LONG + 1
    parts = (mask >> _BITS_OF_A_LONG * n & ((1 << _BITS_OF_A_LONG) - 1) for n in range(words))
    array = (ctypes.c_ulong * words)(*parts)
    # The kernel ignores the last bit of this number.
    bits = ctypes.c_ulong(_BITS_OF_A_LONG * words + 1)
    result = _LIBRARY.syscall(ctypes.c_long(number), ctypes.c_long(policy), array, bits)
    return 0 if result == 0 else ctypes.get_errno()


def checked(result: int) -> None:
    """Raise the OSError of a C function that has returned another value than 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def flush_all() -> None:
    _LIBRARY.fflush(None)


def status_of_this_process(key: str) -> str:
    """Return the value of a line of /proc/self/status (proc(5)); "" where the kernel has none."""
    for line in text_of("/proc/self/status").splitlines():
        if line.startswith(key + ":"):
            return line[len(key) + 1 :].strip()
    return ""


def allowed_cpus() -> str:
    """Return the CPUs that this process may use, "0-3,8"; "" where the kernel doesn't show them."""
    return status_of_this_process("Cpus_allowed_list")


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel send a signal to this process when ``parent`` ends; exit if it has ended already."""
    prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(127)


def close_descriptors_above(highest: int) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) > highest:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one of the listing itself
