"""Run as python folder: sys.path[0] is the folder."""

import sys

import beside

print(
    __name__, __file__, __package__, __spec__ and __spec__.name, sys.path[0], sys.argv, beside.WHO
)
print(type(__loader__).__name__, sorted(dir()))
