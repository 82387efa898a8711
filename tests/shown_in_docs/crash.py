"""Rank 1 ends as a fault in native code would end it."""

import os
import signal
import time

if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(30)
