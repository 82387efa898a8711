import builtins
import os
import signal
import sys


class Upper:
    def __init__(self, stream):
        self.stream = stream

    def write(self, text):
        return self.stream.write(text.upper())

    def flush(self):
        self.stream.flush()


builtins.from_patches = 1
LIMIT = 1234
sys.setrecursionlimit(LIMIT)
sys.stdout = Upper(sys.stdout)
sys.excepthook = lambda kind, error, trace: print("hook:", error)
os.environ["FROM_PATCHES"] = "1"
signal.signal(signal.SIGUSR1, lambda *_: None)
