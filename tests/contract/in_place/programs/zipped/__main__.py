"""Run from a zip file."""

import sys

import beside

print(
    __name__,
    __file__,
    __spec__.name,
    sys.path[0] == sys.argv[0],
    beside.WHO,
    type(__loader__).__name__,
)
raise ValueError("in a zip file")
