"""The last things of the script, of modules, of threading and of C run in Python's order."""

import atexit
import concurrent.futures.thread
import ctypes
import logging
import sys
import threading
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
threading._register_atexit(print, "threading's")
print(threading.main_thread() is threading.current_thread(), threading.main_thread().name)
print(threading.main_thread().ident == threading.get_ident(), threading.main_thread().daemon)
libc = ctypes.CDLL(None)
# puts with the address of a text as its argument: C code all the way, as Python is gone by then.
text = ctypes.create_string_buffer(b"C's atexit")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
libc.__cxa_atexit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
print(libc.__cxa_atexit(ctypes.cast(libc.puts, ctypes.c_void_p), ctypes.addressof(text), None))
