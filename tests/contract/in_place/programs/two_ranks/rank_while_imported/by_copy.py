import os

RANK = os.environ.copy().get("RANK")
