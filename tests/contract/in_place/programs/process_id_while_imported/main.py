"""A local module keeps the process's id, parent and thread while it is imported."""

import os
import threading

import keeps

print(
    keeps.PID == os.getpid(),
    keeps.PARENT == os.getppid(),
    keeps.THREAD == threading.get_native_id(),
)
print(
    keeps.IDENT == threading.get_ident(),
    keeps.MAIN is threading.main_thread(),
    keeps.SESSION == os.getsid(0),
)
print(keeps.CPUS == os.sched_getaffinity(0), keeps.PROC == os.readlink("/proc/self"))
