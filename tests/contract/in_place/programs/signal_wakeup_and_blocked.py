"""Masks, wake-up descriptors and sigtimedwait belong to the script."""

import os
import signal

print(signal.set_wakeup_fd(-1))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGCHLD])
os.kill(os.getpid(), signal.SIGUSR2)
print(signal.sigpending(), signal.sigtimedwait([signal.SIGUSR2], 1).si_signo)
pid = os.fork()
if pid == 0:
    os._exit(0)
print(signal.sigtimedwait([signal.SIGCHLD], 5).si_pid == pid, os.waitpid(pid, 0)[1])
