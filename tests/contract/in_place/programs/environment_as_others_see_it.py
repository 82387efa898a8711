"""/proc/PID/environ holds the variables of this worker, as psutil and the tests of clusterrun read it."""

import os

with open("/proc/self/environ") as environ:
    variables = dict(entry.split("=", 1) for entry in environ.read().split("\0") if entry)
wanted = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PATH", "OMP_NUM_THREADS")
print({name: variables.get(name) == os.environ[name] for name in wanted})
