"""sys.path changed by the script decides where the next import is found."""

import sys

sys.path.insert(0, "changes_the_path_before_it_imports/first")

import which
import json

print(which.WHO, getattr(json, "WHO", None))
