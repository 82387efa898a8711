"""numpy's global generator, and those made without a seed, too."""

import random

import numpy
from numpy.random import default_rng

print("global", numpy.random.random())
print("global state", numpy.random.get_state()[1][:3])
print("permutation", numpy.random.permutation(50))
print("default_rng", default_rng().random())
print("legacy", numpy.random.RandomState().random_sample())
print("entropy", numpy.random.SeedSequence().entropy)
print("seeded rng", default_rng(3).random())
numpy.random.seed(0)
print("seeded", numpy.random.random())
print("random", random.random())
