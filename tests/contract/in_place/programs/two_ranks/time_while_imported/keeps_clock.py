import datetime
import os
import time

# Ranks import this at one moment, and a clock of microseconds may show both the same.
time.sleep(os.getpid() % 97 / 1000)
CLOCK = datetime.datetime.now().isoformat()
