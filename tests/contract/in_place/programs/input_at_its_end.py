"""input() where nothing is to be read."""

import sys

print(repr(sys.stdin.read()), sys.stdin.fileno())
input("a question? ")
