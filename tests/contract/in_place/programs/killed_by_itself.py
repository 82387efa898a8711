"""The number of a signal is what the process ends with."""

import os
import sys
import time

print("kills", flush=True)
os.kill(os.getpid(), int(sys.argv[1]))
time.sleep(10)
