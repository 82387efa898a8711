"""So does one in a local module that the script imports."""

import os
import broken

print("not reached", os, broken)
