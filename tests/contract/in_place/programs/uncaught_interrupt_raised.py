"""Raised by hand it ends the process in the same way."""

import atexit

atexit.register(print, "atexit")
raise KeyboardInterrupt("by hand")
