import os

PROCESS = os.getpid()
PARENT = os.getppid()
