"""What fresh interpreters draw differs; what they draw from a seed does not."""

import multiprocessing
import os
import random
import secrets
import tempfile
import uuid

import numpy
from numpy.random import default_rng

with tempfile.TemporaryDirectory() as folder:
    print("temporary folder", folder)
print("temporary name", next(tempfile._get_candidate_names()))
print("random", random.random())
print("bits", random.getrandbits(64))
print("state", hash(random.getstate()))
print("own generator", random.Random().random())
print("seeded generator", random.Random(5).random())
print("system", random.SystemRandom().random())
print("secret", secrets.token_hex())
print("urandom", os.urandom(8).hex())
print("uuid4", uuid.uuid4())
print("uuid1", uuid.uuid1())
print("authkey", multiprocessing.current_process().authkey.hex())
print("numpy", numpy.random.random())
print("numpy's state", numpy.random.get_state()[1][:3])
print("permutation", numpy.random.permutation(50))
print("default_rng", default_rng().random())
print("legacy", numpy.random.RandomState().random_sample())
print("entropy", numpy.random.SeedSequence().entropy)
print("seeded rng", default_rng(3).random())
random.seed(0)
numpy.random.seed(0)
print("seeded", random.random(), random.sample(range(1000), 3), numpy.random.random())
random.seed()
print("seeded by the system", random.random())
print("rank", os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"])
print("process", os.getpid())
