import numpy

GENERATOR = numpy.random.RandomState()
