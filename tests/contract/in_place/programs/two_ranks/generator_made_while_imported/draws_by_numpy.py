import numpy

DRAWN = numpy.random.random()
