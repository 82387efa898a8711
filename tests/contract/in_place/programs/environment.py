"""os.environ, its bytes, and what getenv(3) in C says, are the worker's."""

import ctypes
import os

DIFFERS = {
    *("CLUSTERRUN_SUSPEND_PAGE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"),
    "MARK_OF_A_TESTED_JOB",
}

for name, value in sorted(os.environ.items()):
    print(name if name in DIFFERS else f"{name}={value!r}")
getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print([name for name, value in os.environb.items() if getenv(name) != value])
names = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
count = next(number for number in range(10000) if names[number] is None)
print(sorted(names[number].partition(b"=")[0] for number in range(count)) == sorted(os.environb))
