"""What C code has printed into its own buffer comes out at the end."""

import ctypes
import os

libc = ctypes.CDLL(None)
libc.printf(b"from printf, %d\n", 7)
os.write(1, b"from write\n")
