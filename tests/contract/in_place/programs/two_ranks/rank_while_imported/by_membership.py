import os

RANK = "RANK" in os.environ
