"""Objects that hang on sys and builtins end, too."""

import builtins
import sys


class Thing:
    def __init__(self, name):
        self.name = name

    def __del__(self, write=sys.stdout.write):
        write(f"del {self.name}\n")


sys.mine = Thing("on sys")
builtins.mine = Thing("on builtins")
