from numpy.random import default_rng

GENERATOR = default_rng()
