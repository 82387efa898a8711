"""Nor by SIGXFSZ where a file is too large."""

import os
import resource
import signal
import tempfile

print(signal.getsignal(signal.SIGXFSZ))
with tempfile.TemporaryFile(buffering=0) as file:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    try:
        file.write(bytes(10))
        file.write(bytes(10))
    except OSError as error:
        print(error, os.fstat(file.fileno()).st_size)
