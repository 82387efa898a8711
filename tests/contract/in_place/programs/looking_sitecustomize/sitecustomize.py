"""This one looks at who it runs for."""

import os
import sys

sys.argv_of_sitecustomize = sys.argv[:]
sys.rank_of_sitecustomize = os.environ.get("RANK")
