"""Frames as the script sees them, down to its own module's."""

import inspect
import sys
import traceback

print(sys._getframe().f_code.co_name, sys._getframe().f_locals is globals())
print([(frame.function, frame.lineno, frame.index) for frame in inspect.stack()[:1]])
traceback.print_stack(limit=1)


def function():
    traceback.print_stack(limit=2)
    print([(frame.function, frame.lineno) for frame in inspect.stack()[:2]])


function()
