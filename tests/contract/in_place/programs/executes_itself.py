"""A script that replaces itself by itself, once, with the same process id and new arguments."""

import os
import sys

print(sys.argv, sys.orig_argv[1:], flush=True)
if len(sys.argv) == 1:
    os.environ["PID_BEFORE"] = str(os.getpid())
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv, "again"])
print(os.environ["PID_BEFORE"] == str(os.getpid()), len(os.listdir("/proc/self/fd")))
sys.exit(13)
