"""Writing where nobody reads is an error, not an end by SIGPIPE."""

import os
import signal
import sys

print(signal.getsignal(signal.SIGPIPE))
read_end, write_end = os.pipe()
os.close(read_end)
try:
    os.write(write_end, b"text")
except BrokenPipeError as error:
    print(error)
os.dup2(write_end, 1)
sys.stdout.write("nobody reads this")
