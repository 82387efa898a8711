"""multiprocessing with fork: Pool, Process, Queue, Pipe, Value, with what __main__ defines."""

import multiprocessing
import os
import sys


class Thing:
    def __init__(self, value):
        self.value = value


def square(thing):
    return Thing(thing.value**2)


def put(queue, connection, counter):
    with counter.get_lock():
        counter.value += 1
    queue.put(Thing(multiprocessing.current_process().name))
    connection.send(multiprocessing.parent_process().name)
    sys.exit(4)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    print(multiprocessing.current_process().name, multiprocessing.parent_process())
    with context.Pool(2) as pool:
        print([thing.value for thing in pool.map(square, map(Thing, range(4)))])
    queue, (mine, theirs), counter = context.Queue(), context.Pipe(), context.Value("i", 1)
    process = context.Process(target=put, args=(queue, theirs, counter))
    process.start()
    print(queue.get().value, mine.recv(), process.join(), process.exitcode, counter.value)
    print(multiprocessing.active_children(), len(os.listdir("/proc/self/task")))
