import random

DRAWN = random.random()
