"""The C library, through what lies beneath ``ctypes``: importing that takes 6 ms and leaves traces."""

from __future__ import annotations

import _ctypes
import errno
import os
import sys

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_MM = 35
PR_SET_MM_MAP = 14
PR_SET_CHILD_SUBREAPER = 36

# linux/mempolicy.h
MPOL_PREFERRED = 1
MPOL_BIND = 2
MPOL_PREFERRED_MANY = 5  # Linux 5.15

# asm/unistd.h: C libraries have no function for it, only libnuma has.
_SET_MEMPOLICY = {
    "x86_64": 238,
    "aarch64": 237,
    "riscv64": 237,
    "loongarch64": 237,
    "ppc64le": 261,
    "s390x": 270,
}


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg] # noqa: SLF001 - its public child is ctypes.c_int
    _type_ = "i"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg] # noqa: SLF001 - as above
    _type_ = "l"


class _Char(_ctypes._SimpleCData):  # type: ignore[type-arg] # noqa: SLF001 - as above
    _type_ = "c"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


class _LongFunction(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Long


class _SystemCall(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


class _Registration(_ctypes.CFuncPtr):
    # Takes addresses of functions.
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int
    _argtypes_ = (_Long, _Long, _Long)


class _LastFunction(_ctypes.CFuncPtr):
    # Called with Python's lock held: no daemon thread may run Python code meanwhile.
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_PYTHONAPI
    _restype_ = _Int


_LIBRARY = _ctypes.dlopen(None, 0)  # type: ignore[arg-type] # this program itself

_prctl = _Function(_ctypes.dlsym(_LIBRARY, "prctl"))
_exit = _LastFunction(_ctypes.dlsym(_LIBRARY, "exit"))
_fflush = _Function(_ctypes.dlsym(_LIBRARY, "fflush"))
_sbrk = _LongFunction(_ctypes.dlsym(_LIBRARY, "sbrk"))
_syscall = _SystemCall(_ctypes.dlsym(_LIBRARY, "syscall"))
unshare = _Function(_ctypes.dlsym(_LIBRARY, "unshare"))
mount = _Function(_ctypes.dlsym(_LIBRARY, "mount"))


def prctl(option: int, *arguments: int) -> int:
    """Ask something of the kernel for this process; return what it answers."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return int(_prctl(option, *(_Long(argument) for argument in padded)))


def set_memory_policy(policy: int, nodes: list[int]) -> int:
    """Have this thread, and those it makes, take memory from ``nodes``; return 0 or an errno."""
    number = _SET_MEMPOLICY.get(os.uname().machine)
    if number is None or sys.maxsize < 1 << 32:
        return errno.ENOSYS
    mask = sum(1 << node for node in set(nodes))
    words = mask.bit_length() // 64 + 1
    # An array of unsigned long.
    low = (1 << 64) - 1
    data = b"".join((mask >> 64 * at & low).to_bytes(8, sys.byteorder) for at in range(words))
    address, kept = keep(data)
    # The kernel drops the last of the bits that it is told of.
    arguments = (number, policy, address, 64 * words + 1)
    result = _syscall(*(_Long(argument) for argument in arguments))
    del kept
    return 0 if result == 0 else _ctypes.get_errno()


def checked(result: int) -> None:
    """Raise the OSError of a C function that has returned -1."""
    if result != 0:
        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def flush_all() -> None:
    """Write out what C code has printed."""
    _fflush(None)


def end_at_this_handler() -> None:
    """Have ``exit`` end the process here, with what is printed written out, and call nothing older."""
    try:
        at_exit = _Registration(_ctypes.dlsym(_LIBRARY, "__cxa_atexit"))
        on_exit = _Registration(_ctypes.dlsym(_LIBRARY, "on_exit"))
        leave = _ctypes.dlsym(_LIBRARY, "_exit")
        write_out = _ctypes.dlsym(_LIBRARY, "fcloseall")
    except OSError:
        return  # another C library than GNU's: then all is called
    # The later one is called first: what is printed is written, then _exit gets exit's own code.
    on_exit(leave, 0, 0)
    at_exit(write_out, 0, 0)


def exit_process(code: int) -> None:
    """End this process with the C library's exit, which calls what C code has asked it to call."""
    _exit(code)


def program_break() -> int:
    """Return the end of the heap, an address."""
    return int(_sbrk(_Long(0)))


def keep(data: bytes) -> tuple[int, object]:
    """Copy ``data`` to memory of C's; return its address, and what keeps it there."""
    block = (_Char * len(data)).from_buffer_copy(data)
    return _ctypes.addressof(block), block
