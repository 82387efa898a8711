import numpy

GENERATOR = numpy.random.default_rng(3)
