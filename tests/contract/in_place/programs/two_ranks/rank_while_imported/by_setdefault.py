import os

RANK = os.environ.setdefault("RANK", "default")
