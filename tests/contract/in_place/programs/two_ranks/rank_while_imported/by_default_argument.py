import os


def rank(value=int(os.environ.get("RANK", -1))):
    return value


RANK = rank()
