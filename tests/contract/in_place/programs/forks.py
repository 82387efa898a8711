"""os.fork in the script: the child ends as a Python of its own, atexit and all."""

import atexit
import os
import sys
import threading

atexit.register(lambda: print("atexit in", "child" if os.getpid() != parent else "parent"))
parent = os.getpid()
os.register_at_fork(before=lambda: print("before"), after_in_child=lambda: print("after, child"))
pid = os.fork()
if pid == 0:
    print("child", os.getppid() == parent, threading.main_thread().name, threading.active_count())
    sys.exit(6)
print("status", os.waitpid(pid, 0)[1] >> 8)
