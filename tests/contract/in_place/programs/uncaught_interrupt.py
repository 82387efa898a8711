"""KeyboardInterrupt that nobody catches: a traceback, and the end by SIGINT."""

import atexit
import signal

atexit.register(print, "atexit")
print(signal.getsignal(signal.SIGINT))
signal.raise_signal(signal.SIGINT)
