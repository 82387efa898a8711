import random

import numpy

random.seed(7)
numpy.random.seed(7)
DRAWN = random.random(), numpy.random.random()
