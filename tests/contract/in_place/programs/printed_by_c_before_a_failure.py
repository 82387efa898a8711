"""Also where the script fails."""

import ctypes

libc = ctypes.CDLL(None)
libc.puts(b"from puts")
raise SystemExit(9)
