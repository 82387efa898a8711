import os

DESCRIPTOR = os.open(__file__, os.O_RDONLY)
