"""Shared memory and managers: resource trackers are started and cleaned up."""

import multiprocessing
from multiprocessing import resource_tracker, shared_memory


def fill(name):
    block = shared_memory.SharedMemory(name)
    block.buf[0] = 7
    block.close()


if __name__ == "__main__":
    print(resource_tracker._resource_tracker._pid, resource_tracker._resource_tracker._fd)
    context = multiprocessing.get_context("fork")
    block = shared_memory.SharedMemory(create=True, size=8)
    process = context.Process(target=fill, args=(block.name,))
    process.start()
    process.join()
    print(block.buf[0], process.exitcode)
    block.close()
    block.unlink()
    with context.Manager() as manager:
        shared = manager.dict(a=1)
        print(shared.copy(), multiprocessing.current_process().name)
