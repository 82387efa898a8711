"""Functions registered with C's atexit run, after Python's own."""

import atexit
import ctypes

libc = ctypes.CDLL(None)
# puts with the address of a text as its argument: C code all the way, as Python is gone by then.
text = ctypes.create_string_buffer(b"C's atexit")
ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
libc.__cxa_atexit.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
print(libc.__cxa_atexit(ctypes.cast(libc.puts, ctypes.c_void_p), ctypes.addressof(text), None))
atexit.register(print, "Python's atexit")
