"""A statement between imports runs before what comes after it."""

import os

os.environ["SET_BEFORE_IMPORT"] = "1"

import json
import sys

print(os.environ["SET_BEFORE_IMPORT"], json.__name__, sys.argv[1:])
