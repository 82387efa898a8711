"""The script's own handlers for TERM, ALRM, CHLD and USR1; masks and wake-up descriptors are its own."""

import os
import signal
import time


def handler(number, frame):
    print("handler", signal.Signals(number).name, frame.f_code.co_name)


def child():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


print(signal.set_wakeup_fd(-1), signal.pthread_sigmask(signal.SIG_BLOCK, []))
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1):
    print(signal.signal(number, handler))
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.2)
pid = child()
time.sleep(0.2)
print(os.waitpid(pid, 0)[1])
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGCHLD])
os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigpending(), signal.sigtimedwait([signal.SIGUSR2], 1).si_signo)
pid = child()
print(signal.sigtimedwait([signal.SIGCHLD], 5).si_pid == pid, os.waitpid(pid, 0)[1])
