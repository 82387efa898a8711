"""The frames of a module run by -m, above runpy's."""

import sys
import traceback

from .other import name_of_other

frame, depth = sys._getframe(), 0
while frame and "runpy" not in frame.f_code.co_filename:
    print(depth, frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)
    frame, depth = frame.f_back, depth + 1
traceback.print_stack(limit=1)
print(name_of_other())
