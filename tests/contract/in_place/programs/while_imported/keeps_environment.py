import os

HOME = os.environ["HOME"]
MASTER = "NO_SUCH_VARIABLE" in os.environ
