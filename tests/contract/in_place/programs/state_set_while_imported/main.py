"""What a local module sets for the whole process while it is imported holds in the script."""

import locale
import os
import resource
import signal
import socket
import sys
import warnings

import sets

umask = os.umask(0)
print(oct(umask), os.getcwd().rpartition("/")[2], resource.getrlimit(resource.RLIMIT_CORE))
print(
    signal.getsignal(signal.SIGUSR1) is sets.handler,
    signal.getsignal(signal.SIGTERM) is sets.handler,
)
print(sys.getrecursionlimit(), sys.getswitchinterval(), socket.getdefaulttimeout())
print(os.environ["SET_WHILE_IMPORTED"], os.environ.get("TERM"), os.nice(0), signal.getitimer(0)[1])
print(
    locale.setlocale(locale.LC_NUMERIC), warnings.filters[0], sys.path[-1], sys.dont_write_bytecode
)
print(len(sets.CHILD_SAID), "pre" if sets.gc_off else "", sys.stdout.line_buffering)
