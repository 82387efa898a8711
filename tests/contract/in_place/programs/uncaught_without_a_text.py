"""An exception whose __str__ fails, of a class without a module's name."""

import sys


class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no text")


sys.tracebacklimit = 5
raise Silent
