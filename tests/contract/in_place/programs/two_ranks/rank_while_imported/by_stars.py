import os

RANK = {**os.environ}.get("RANK")
