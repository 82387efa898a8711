"""A script is the outermost frame: no frame of a launcher below it."""

import inspect
import sys
import traceback

print(sys._getframe().f_back, sys._getframe().f_code.co_name, sys._getframe().f_locals is globals())
print([(frame.function, frame.filename, frame.lineno, frame.index) for frame in inspect.stack()])
print(len(traceback.extract_stack()), inspect.currentframe().f_back)
traceback.print_stack()


def function():
    traceback.print_stack()
    print([(frame.function, frame.lineno) for frame in inspect.stack()])
    try:
        sys._getframe(2)
    except ValueError as error:
        print(error)


function()
