import os

RANK = os.environ._data.get(b"RANK")
