import os

RANK = sorted(value for name, value in os.environ.items() if name.endswith("RANK"))
