"""Both streams end without a newline."""

import sys

print("a line", "and a tail", sep="\n", end="")
print("a line on stderr", "and a tail on stderr", sep="\n", end="", file=sys.stderr)
