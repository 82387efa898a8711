"""An exception in a thread is printed with the thread's name and ends nothing."""

import threading


def fail():
    raise LookupError("in a thread")


thread = threading.Thread(target=fail, name="failing")
thread.start()
thread.join()
print("goes on")
