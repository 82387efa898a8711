"""PYTHONINSPECT makes the interpreter read commands after the script, also after a failure."""

import sys

VALUE = 5
print("script", sys.flags.inspect)
raise LookupError("and then commands")
