"""__del__ of what is still alive at the end runs, in order, and can print."""

import sys


class Thing:
    def __init__(self, name):
        self.name = name

    def __del__(self):
        print("del", self.name, sys is not None, __name__)


first = Thing("first")
second = Thing("second")
cycle = Thing("cycle")
cycle.itself = cycle
_private = Thing("private")
holder = [Thing("in a list")]
