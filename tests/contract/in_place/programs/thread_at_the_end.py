"""A thread that is no daemon is waited for, and prints after main has ended; then atexit runs."""

import atexit
import threading
import time


def slow():
    time.sleep(0.1)
    print("thread", threading.main_thread().is_alive(), threading.current_thread().name)


atexit.register(print, "atexit")
threading.Thread(target=slow, name="slow").start()
print("main")
