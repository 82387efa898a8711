import os

RANK = os.environ.pop("ROLE_RANK", None)
