"""The name and arguments that ps and nvidia-smi show."""

import os
import subprocess

with open("/proc/self/comm") as comm, open("/proc/self/cmdline") as cmdline:
    print(comm.read(), cmdline.read().split("\0"))
print(
    subprocess.run(
        ["ps", "-o", "comm=,args=", "-p", str(os.getpid())], capture_output=True, text=True
    ).stdout
)
print(os.readlink("/proc/self/exe"), os.readlink("/proc/self/cwd") == os.getcwd())
