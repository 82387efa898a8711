"""An uncaught exception: its traceback, and 1."""

import json


def parse(text):
    return json.loads(text)


class Config:
    def __init__(self):
        self.value = parse("{'a': 1}")


Config()
