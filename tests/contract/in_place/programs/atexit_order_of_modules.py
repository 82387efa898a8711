"""Functions registered by imported modules run after the script's own."""

import atexit
import concurrent.futures.thread
import logging
import weakref


class Handler(logging.Handler):
    def emit(self, record):
        pass

    def flush(self):
        print("logging flushes")


logging.getLogger().addHandler(handler := Handler())
finalizer = weakref.finalize(handler, print, "finalize")
finalizer.atexit = True
print(atexit._ncallbacks() > 0, concurrent.futures.thread._shutdown)
atexit.register(print, "script's")
