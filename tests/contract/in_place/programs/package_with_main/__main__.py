"""python -m package runs package.__main__."""

import sys

from . import ARGV, MAIN_SO_FAR
from .inner import deep

print(ARGV, MAIN_SO_FAR)
print(__name__, __spec__.name, __package__, sys.argv)
print(deep.WHO, deep.up())
