"""sys.exit in atexit."""

import atexit
import sys

atexit.register(print, "runs all the same")
atexit.register(sys.exit, 8)
