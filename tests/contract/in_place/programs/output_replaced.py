"""sys.stdout replaced, closed or redirected by the script."""

import contextlib
import io
import os
import sys

with contextlib.redirect_stdout(io.StringIO()) as text:
    print("caught")
print(repr(text.getvalue()))
sys.stdout.reconfigure(encoding="latin-1", errors="replace")
print("\xfc \u20ac")
saved = os.dup(1)
os.dup2(2, 1)
print("on stderr")
os.dup2(saved, 1)
sys.stdout = open(1, "w", closefd=False)
print("left in a buffer of the script's own")
