import os

DRAWN = os.urandom(4).hex()
