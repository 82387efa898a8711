import os

RANK = dict(os.environ).get("RANK")
