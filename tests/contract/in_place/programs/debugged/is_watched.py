"""Knows of no debugger."""

import json
import os


def train(steps):
    total = 0
    for step in range(steps):
        total += step
    return total


print("total", train(4), os.environ["RANK"], json.dumps(__name__))
