import os

RANK = os.environ.get("LOCAL_RANK")
