"""A package records what sys.argv is while python -m is still looking for the module."""

import sys

ARGV = list(sys.argv)
MAIN_SO_FAR = sorted(vars(sys.modules["__main__"]))
