"""A local module registers with atexit while it is imported: it runs at the end, after ours."""

import atexit

import registers

atexit.register(print, "script's", registers.VALUE)
