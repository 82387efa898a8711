"""The script's own hooks for threads and destructors."""

import sys
import threading

threading.excepthook = lambda args: print("thread hook", args.exc_type.__name__, args.thread.name)
sys.unraisablehook = lambda args: print("unraisable hook", args.exc_value)


class Thing:
    def __del__(self):
        raise ValueError("in __del__")


thread = threading.Thread(target=lambda: 1 / 0, name="mine")
thread.start()
thread.join()
Thing()
