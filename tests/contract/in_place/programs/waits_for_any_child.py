"""There is no child but the script's own to wait for."""

import os

try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError as error:
    print(error)
with open(f"/proc/self/task/{os.getpid()}/children") as children:
    print(repr(children.read()))
