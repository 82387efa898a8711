"""sys.settrace and sys.setprofile of the script see the script's calls only."""

import sys

seen = []


def trace(frame, event, argument):
    seen.append((event, frame.f_code.co_name, frame.f_lineno))
    return trace


def function():
    return 1


sys.settrace(trace)
function()
sys.settrace(None)
print(seen)
seen.clear()
sys.setprofile(lambda frame, event, argument: seen.append((event, frame.f_code.co_name)))
function()
sys.setprofile(None)
print(seen)
