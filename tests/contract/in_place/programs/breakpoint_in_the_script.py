"""breakpoint() with commands from stdin."""

import sys


def function(number):
    breakpoint()
    return number + 1


print(function(1), sys.breakpointhook.__name__)
