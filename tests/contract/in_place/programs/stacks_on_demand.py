"""faulthandler's stacks hold the script's frames only; it is off until somebody turns it on."""

import faulthandler
import sys

print(faulthandler.is_enabled())


def function():
    faulthandler.dump_traceback(sys.stdout)


function()
faulthandler.dump_traceback_later(0.05, exit=True, file=sys.stdout)
import time

time.sleep(10)
