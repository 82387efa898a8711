"""An exception in atexit is printed, the rest is run, the exit code stays."""

import atexit
import sys

atexit.register(print, "runs all the same")


@atexit.register
def fail():
    raise ValueError("in atexit")


sys.exit(3)
