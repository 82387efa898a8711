"""What an atexit function may still do: threads, and registering another one."""

import atexit
import threading


@atexit.register
def last():
    try:
        thread = threading.Thread(target=print, args=("thread from atexit",))
        thread.start()
        thread.join()
    except RuntimeError as error:
        print("RuntimeError", error)
    atexit.register(print, "registered by atexit")
    print("main thread", threading.main_thread().is_alive(), threading.current_thread().name)
