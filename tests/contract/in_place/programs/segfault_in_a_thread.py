"""And all threads, the main one's stack too."""

import ctypes
import faulthandler
import resource
import threading

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
faulthandler.enable(all_threads=True)


def crash():
    ctypes.string_at(0)


thread = threading.Thread(target=crash)
thread.start()
thread.join()
