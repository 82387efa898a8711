"""The compiler warns of the string, which a filter may make an error."""

import sys

print("\d", file=sys.stderr)
