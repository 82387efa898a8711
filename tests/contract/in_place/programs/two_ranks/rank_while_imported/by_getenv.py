import os

RANK = os.getenv("RANK", "-1"), os.getenvb(b"LOCAL_RANK")
