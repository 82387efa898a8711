"""A local module seeds while it is imported: what is drawn then is the same on each rank."""

import random

import numpy
import seeds

print("random", random.random())
print("numpy", numpy.random.random())
print("drawn by it", seeds.DRAWN)
