"""KeyboardInterrupt that the script catches."""

import os
import signal
import time

try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt as error:
    print("caught", repr(error), error.__traceback__.tb_lineno > 0)
