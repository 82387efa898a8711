"""How deep one may recurse does not depend on who started the script."""

import sys


def depth(number=1):
    try:
        return depth(number + 1)
    except RecursionError:
        return number


sys.setrecursionlimit(500)
print(depth())
