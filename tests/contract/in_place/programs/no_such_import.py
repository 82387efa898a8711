"""A leading import that fails, fails in the script, with the script's traceback."""

import os
import no_such_module_anywhere
import sys

print("not reached", os, sys)
