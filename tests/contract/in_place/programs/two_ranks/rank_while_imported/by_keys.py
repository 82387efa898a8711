import os

RANK = sorted(name for name in os.environ.keys() if name.endswith("RANK"))
