"""The script's own sys.excepthook sees the exception; its own failure is told."""

import sys


def hook(kind, error, trace):
    print("hook", kind.__name__, error, trace.tb_lineno, trace.tb_frame.f_code.co_name)
    frames = []
    while trace:
        frames.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    print(frames, sys.excepthook is hook)
    raise LookupError("in the hook")


def fail():
    raise ValueError("for the hook")


sys.excepthook = hook
fail()
