import sys

VALUE = __name__, sys.argv[0], sys.modules["__main__"].__file__
