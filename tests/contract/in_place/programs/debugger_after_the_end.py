"""pdb.post_mortem, its commands from stdin: the stack and the line."""

import pdb
import sys


def fail(number):
    return 1 / number


try:
    fail(0)
except ZeroDivisionError:
    pdb.post_mortem()
print("afterwards", sys.argv[1:])
