"""A child that outlives the script does not keep it from ending; its parent stays alive while it runs."""

import os
import subprocess
import sys

parent = os.getppid()
child = subprocess.Popen(
    [sys.executable, "-c", "pass"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
)
print(os.getppid() == parent, parent > 0, child.wait())
