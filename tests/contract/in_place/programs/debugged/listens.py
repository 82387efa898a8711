"""Waits for a debugger, and stops where it is told to."""

import os
import sys

import debugpy


def train(steps):
    total = 0
    for step in range(steps):
        total += step
    return total


debugpy.listen(("127.0.0.1", int(sys.argv[1])))
debugpy.wait_for_client()
debugpy.breakpoint()
print("total", train(4), os.environ["RANK"])
