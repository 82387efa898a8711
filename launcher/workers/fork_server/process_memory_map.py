"""What ``ps``, ``top`` and nvidia-smi show of a process: its arguments and its environment."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

from .libc import PR_SET_MM, PR_SET_MM_MAP, keep, prctl, program_break
from .proc import stat_fields

_NO_FILE = 0xFFFFFFFF

_shown: list[object] = []
"""Keeps the memory that the kernel shows."""


def show(arguments: list[str], environment: Mapping[str, str]) -> bool:
    """Have the kernel show these as this process's; return False where it won't.

    /proc/PID/cmdline and environ are read from the process's own memory, at addresses that
    prctl(2) PR_SET_MM_MAP changes (kernels with CONFIG_CHECKPOINT_RESTORE; no privilege needed).
    """
    shown_arguments = b"".join(_encoded(argument) + b"\0" for argument in arguments)
    shown_environment = b"".join(
        _encoded(f"{name}={value}\0") for name, value in environment.items()
    )
    address, block = keep(shown_arguments + shown_environment + b"\0")
    middle = address + len(shown_arguments)
    try:
        new_map = _memory_map((address, middle, middle, middle + len(shown_environment)))
    except (OSError, ValueError, IndexError):
        return False
    map_address, map_block = keep(new_map)
    _shown.append(block)
    done = prctl(PR_SET_MM, PR_SET_MM_MAP, map_address, len(new_map)) == 0
    del map_block
    return done


def _memory_map(shown: tuple[int, int, int, int]) -> bytes:
    """Return a ``struct prctl_mm_map`` (linux/prctl.h): as things are, but for ``shown``."""
    # As proc(5) numbers them.
    fields = ["", "", "", *stat_fields(os.getpid())]
    start_code, end_code, start_stack = (int(fields[n]) for n in (26, 27, 28))
    start_data, end_data, start_break = (int(fields[n]) for n in (45, 46, 47))
    addresses = (
        *(start_code, end_code, start_data, end_data),
        *(start_break, program_break(), start_stack),
        *shown,
        0,  # no new auxiliary vector
    )
    last = (0).to_bytes(4, "little") + _NO_FILE.to_bytes(4, "little")
    return b"".join(address.to_bytes(8, "little") for address in addresses) + last


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
