"""The frames below a module run by -m."""

import sys
import traceback

from .other import name_of_other

frame, depth = sys._getframe(), 0
while frame:
    print(depth, frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)
    frame, depth = frame.f_back, depth + 1
traceback.print_stack()
print(name_of_other())
