import random

GENERATOR = random.Random()
