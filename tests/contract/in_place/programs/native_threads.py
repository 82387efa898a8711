"""One thread, whose number in the kernel is the process's."""

import os
import sys
import threading

print(len(os.listdir("/proc/self/task")), os.listdir("/proc/self/task") == [str(os.getpid())])
print(threading.get_native_id() == os.getpid())
print(len(sys._current_frames()), threading.main_thread().ident in sys._current_frames())
