"""A variable set before an import is what the imported module sees."""

import os

os.environ["MODE"] = "fast"

import reads_mode

print(reads_mode.MODE)
