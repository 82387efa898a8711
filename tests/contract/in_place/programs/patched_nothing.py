"""What a launcher may have replaced in the interpreter is the interpreter's own again."""

import builtins
import gc
import io
import os
import signal
import sys
import threading
import warnings
import weakref

print(type(os.environ), type(os.environ._data), os.environ.__class__.__mro__)
print(
    {
        name: repr(getattr(os.environ, name)).split(" at ")[0]
        for name in ("encodekey", "decodevalue")
    }
)
print(os.getenv, os.putenv, type(os.getenv), os.getenv.__code__.co_filename)
print(os.environ.__getitem__.__func__.__qualname__, os.environ.__getitem__.__func__.__module__)
print(builtins.__import__, builtins.open, builtins.print, builtins.exit, builtins.quit)
print(io.open is open, os.fork, os._exit, os.register_at_fork)
print(*(str(hook).split(" at ")[0] for hook in sys.meta_path), sep="\n")
print(*(str(hook).split(" at ")[0] for hook in sys.path_hooks), sep="\n")
print(sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
print(sys.displayhook is sys.__displayhook__, sys.breakpointhook is sys.__breakpointhook__)
print(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__)
print(
    threading.excepthook is threading.__excepthook__, threading.gettrace(), threading.getprofile()
)
print(sys.gettrace(), sys.getprofile(), sys.getswitchinterval(), sys.getrecursionlimit())
print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.get_debug())
print(warnings.filters, warnings.showwarning.__module__, warnings.warn)
print(signal.set_wakeup_fd(-1), sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth())
print(
    sys.exc_info(), hasattr(sys, "last_type"), hasattr(sys, "ps1"), hasattr(sys, "tracebacklimit")
)
print(threading.Thread.start.__qualname__, threading.Thread.start.__code__.co_filename)
print(threading.active_count(), threading.enumerate() == [threading.main_thread()])
print(weakref.finalize._registry if hasattr(weakref.finalize, "_registry") else None)
