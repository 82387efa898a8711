"""Modules that whatever starts us may have used work as if they had never been imported."""

import sys

BEFORE = set(sys.modules)

import array
import contextlib
import ctypes
import fcntl
import json
import select
import signal
import socket
import struct
import threading
import time

print(sorted(set(sys.modules) - BEFORE))
print(json.loads(json.dumps({"a": [1, 2.5, None]})))
left, right = socket.socketpair()
left.send(b"text")
print(select.select([right], [], [], 1)[0] == [right], right.recv(10))
print(struct.unpack("<I", b"\1\0\0\0"), array.array("i", [1]).itemsize)
print(signal.Signals(15), signal.SIGTERM is signal.Signals.SIGTERM, signal.getsignal(2))
print(ctypes.CDLL(None).abs(-3), ctypes.c_int(4).value, ctypes.get_errno())
print(isinstance(socket.AF_UNIX, socket.AddressFamily), left.family is socket.AF_UNIX)
print(issubclass(json.JSONDecodeError, ValueError), fcntl.fcntl(right, fcntl.F_GETFD))
with contextlib.suppress(KeyError):
    {}[1]
thread = threading.Thread(target=time.sleep, args=(0,))
thread.start()
thread.join()
print(threading.active_count(), threading.main_thread().name)
for module in (array, contextlib, ctypes, fcntl, json, select, signal, socket, struct, threading):
    print(
        module.__name__, sys.modules[module.__name__] is module, getattr(module, "__file__", None)
    )
left.close()
right.close()
