"""sys.path[0] is the folder of the file that a link leads to, __file__ is the link."""

import sys

import from_pythonpath

print(__file__, sys.path[0], sys.argv, from_pythonpath.__file__)
