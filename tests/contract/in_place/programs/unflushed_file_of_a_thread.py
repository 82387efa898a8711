"""Text in a file that a daemon thread's frame holds is as lost, or not, as in any interpreter."""

import threading
import time


def hold(ready):
    file = open("of_a_thread.txt", "w")
    file.write("text of a thread")
    ready.set()
    time.sleep(1000)


ready = threading.Event()
threading.Thread(target=hold, args=(ready,), daemon=True).start()
ready.wait()
