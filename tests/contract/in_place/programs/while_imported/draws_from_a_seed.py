import random

GENERATOR = random.Random(4)
