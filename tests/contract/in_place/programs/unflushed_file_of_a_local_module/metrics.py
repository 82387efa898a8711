import time

_file = None
BEGIN = time.strftime


def start(path):
    global _file
    _file = open(path, "w")


def log(text):
    _file.write(text)
