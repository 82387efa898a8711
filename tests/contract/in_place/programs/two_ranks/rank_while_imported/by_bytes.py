import os

RANK = os.environb.get(b"RANK")
