"""It has seen what it would see in a fresh interpreter: the program, and the rank."""

import sys

print(sys.argv_of_sitecustomize, sys.rank_of_sitecustomize)
