"""A handler of TERM that raises SystemExit: finally, atexit and the exit code are the script's."""

import atexit
import os
import signal
import sys
import time

atexit.register(print, "atexit")
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(21))
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
finally:
    print("finally")
