"""multiprocessing with spawn: __main__ is run again as __mp_main__, by its path."""

import multiprocessing
import sys


class Thing:
    def __init__(self, value):
        self.value = value


def put(queue, thing):
    print("child", __name__, sys.argv, sys.path[0] == sys.path[0].rstrip("/"), thing.value)
    print(
        "child",
        sys.modules["__main__"].__file__,
        sys.modules["__main__"] is sys.modules["__mp_main__"],
    )
    queue.put((Thing(6), multiprocessing.current_process().name))


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=put, args=(queue, Thing(5)))
    process.start()
    thing, name = queue.get()
    process.join()
    print(isinstance(thing, Thing), thing.value, name, process.exitcode)
