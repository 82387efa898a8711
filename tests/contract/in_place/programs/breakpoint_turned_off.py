"""PYTHONBREAKPOINT=0."""

import os

breakpoint()
print("went on", os.environ["PYTHONBREAKPOINT"])
