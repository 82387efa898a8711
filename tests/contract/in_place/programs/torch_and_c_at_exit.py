"""Torch's own end is of no interest; what C code has printed, and asked for, is."""

import ctypes
import sys

import torch

libc = ctypes.CDLL(None)
libc.__cxa_atexit.argtypes = [ctypes.c_void_p] * 3
# C's puts, called at the end with a text of C's own: Python's are gone by then.
libc.gnu_get_libc_version.restype = ctypes.c_void_p
text = libc.gnu_get_libc_version()
libc.__cxa_atexit(ctypes.cast(libc.puts, ctypes.c_void_p), text, None)
libc.printf(b"in C's buffer, without a newline: ")
print(torch.ones(2).sum().item(), flush=True)
sys.exit(5)
