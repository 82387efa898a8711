import os

DRAWN = os.getrandom(4).hex()
