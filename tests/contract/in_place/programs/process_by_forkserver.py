"""multiprocessing with forkserver: its server is started from this process as from any."""

import multiprocessing
import sys


class Thing:
    def __init__(self, value):
        self.value = value


def put(queue, thing):
    queue.put((Thing(thing.value + 1), __name__, sys.modules["__main__"].__file__))


if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    process = context.Process(target=put, args=(queue, Thing(5)))
    process.start()
    thing, *where = queue.get()
    process.join()
    print(isinstance(thing, Thing), thing.value, where, process.exitcode)
