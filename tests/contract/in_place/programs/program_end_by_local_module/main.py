"""A local module ends the program while it is imported."""

import os

import leaves

print("never", os.sep, leaves)
