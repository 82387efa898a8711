"""The script's own handlers for TERM, ALRM, CHLD and USR1."""

import os
import signal
import time


def handler(number, frame):
    print("handler", signal.Signals(number).name, frame.f_code.co_name)


for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1):
    print(signal.signal(number, handler))
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0.01)
print(signal.sigwait([]) if False else "", end="")
signal.pause()
pid = os.fork()
if pid == 0:
    os._exit(0)
time.sleep(0.2)
print(os.waitpid(pid, 0)[1])
