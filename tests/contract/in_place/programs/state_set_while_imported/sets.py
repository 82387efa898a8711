import gc
import locale
import os
import resource
import signal
import socket
import subprocess
import sys
import warnings


def handler(number, frame):
    pass


os.umask(0o027)
os.chdir("state_set_while_imported")
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
signal.signal(signal.SIGUSR1, handler)
signal.signal(signal.SIGTERM, handler)
sys.setrecursionlimit(2345)
sys.setswitchinterval(0.02)
socket.setdefaulttimeout(7)
os.environ["SET_WHILE_IMPORTED"] = "1"
os.environ.pop("TERM", None)
os.nice(1)
signal.setitimer(signal.ITIMER_REAL, 1000, 1000)
locale.setlocale(locale.LC_NUMERIC, "C")
warnings.simplefilter("ignore", ResourceWarning)
sys.path.append("appended by sets")
sys.dont_write_bytecode = True
CHILD_SAID = subprocess.run(["sh", "-c", "echo said"], capture_output=True).stdout
gc_off = gc.isenabled()
