"""PYTHONPATH's folders come behind the script's own, and their modules are found."""

import os
import sys

import from_pythonpath

print(from_pythonpath.__file__, sys.path[:3], os.environ["PYTHONPATH"])
