"""What fresh interpreters draw differs; what they draw from a seed does not."""

import multiprocessing
import os
import random
import secrets
import tempfile
import uuid

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
random.seed(0)
print("seeded", random.random(), random.sample(range(1000), 3))
random.seed()
print("seeded by the system", random.random())
print("rank", os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"])
print("process", os.getpid())
