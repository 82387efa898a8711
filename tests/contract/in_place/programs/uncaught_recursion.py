"""A traceback with lines repeated."""

import sys


def again():
    return again()


sys.setrecursionlimit(100)
again()
