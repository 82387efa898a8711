"""A local module imports __main__ while the script imports it."""

import sys

import looks_back

VALUE = 2

print(looks_back.SEEN, looks_back.main is sys.modules["__main__"], looks_back.main.VALUE)
