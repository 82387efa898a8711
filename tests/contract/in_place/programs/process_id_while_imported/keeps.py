import os
import threading

PID = os.getpid()
PARENT = os.getppid()
THREAD = threading.get_native_id()
IDENT = threading.get_ident()
MAIN = threading.main_thread()
SESSION = os.getsid(0)
CPUS = os.sched_getaffinity(0)
PROC = os.readlink("/proc/self")
