"""What nobody reads, or a file that is too large, is an error, and no end by a signal."""

import os
import resource
import signal
import sys
import tempfile

print(signal.getsignal(signal.SIGXFSZ), signal.getsignal(signal.SIGPIPE))
with tempfile.TemporaryFile(buffering=0) as file:
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    try:
        file.write(bytes(10))
        file.write(bytes(10))
    except OSError as error:
        print(error, os.fstat(file.fileno()).st_size)
read_end, write_end = os.pipe()
os.close(read_end)
try:
    os.write(write_end, b"text")
except BrokenPipeError as error:
    print(error)
os.dup2(write_end, 1)
sys.stdout.write("nobody reads this")
