"""And where they are imported late, inside a function."""

import os
import sys


def late():
    import runpy
    import threading
    import traceback

    return [module.__file__ for module in (runpy, threading, traceback)]


print(late(), len(os.sep), len(sys.path) > 1)
