"""A fork in a thread: the thread is the child's main thread."""

import os
import threading


def fork():
    pid = os.fork()
    if pid == 0:
        print(threading.current_thread() is threading.main_thread(), threading.active_count())
        os._exit(0)
    os.waitpid(pid, 0)


thread = threading.Thread(target=fork, name="forking")
thread.start()
thread.join()
