import os

RANK = os.environ["RANK"]
