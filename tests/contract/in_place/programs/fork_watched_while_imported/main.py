"""A local module registers for forks while it is imported: it hears of the script's only."""

import os

import watches

pid = os.fork()
if pid == 0:
    os._exit(0)
print(os.waitpid(pid, 0)[1], watches.HEARD)
