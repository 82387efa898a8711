"""An alarm without a handler ends the process by SIGALRM."""

import signal
import time

signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(5)
