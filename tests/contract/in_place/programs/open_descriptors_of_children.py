"""A child of the script that closes nothing inherits 0, 1 and 2 only."""

import subprocess
import sys

look = "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))"
subprocess.run([sys.executable, "-c", look], close_fds=False)
