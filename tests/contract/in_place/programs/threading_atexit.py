"""threading's own list of last things comes before atexit's."""

import atexit
import threading

atexit.register(print, "atexit")
threading._register_atexit(print, "threading's")
print(threading.main_thread() is threading.current_thread(), threading.main_thread().name)
print(threading.main_thread().ident == threading.get_ident(), threading.main_thread().daemon)
