"""A trace function that is still set at the end sees atexit's functions and no others."""

import atexit
import sys


@atexit.register
def last():
    pass


def trace(frame, event, argument):
    sys.stdout.write(f"{event} {frame.f_code.co_name} {frame.f_code.co_filename}\n")


sys.settrace(trace)
