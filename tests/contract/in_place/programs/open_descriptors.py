"""Descriptors 0, 1 and 2, and no others; each new one is the lowest number."""

import fcntl
import os
import stat

listing = os.open("/proc/self/fd", os.O_RDONLY)
print(sorted(os.listdir(listing), key=int), listing)
for descriptor in range(3):
    mode = os.fstat(descriptor).st_mode
    print(stat.S_ISFIFO(mode), stat.S_ISCHR(mode), fcntl.fcntl(descriptor, fcntl.F_GETFD))
    print(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_NONBLOCK, os.get_inheritable(descriptor))
print(os.open(os.devnull, os.O_RDONLY))
