"""Local modules keep numpy's generators, or what they drew, while they are imported."""

import draws_by_numpy
import makes_default_rng
import makes_legacy_generator
import makes_seeded_rng

print("default_rng", makes_default_rng.GENERATOR.random())
print("legacy", makes_legacy_generator.GENERATOR.random_sample())
print("drawn", draws_by_numpy.DRAWN)
print("seeded", makes_seeded_rng.GENERATOR.random())
