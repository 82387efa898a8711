"""Which start method multiprocessing takes, and its counters, are those of a fresh process."""

import multiprocessing
import multiprocessing.process
import os

print(multiprocessing.get_start_method(allow_none=True), multiprocessing.get_all_start_methods())
print(next(multiprocessing.process._process_counter), multiprocessing.process._children)
print(multiprocessing.current_process().pid == os.getpid(), multiprocessing.current_process())
print(len(multiprocessing.current_process().authkey))
multiprocessing.set_start_method("spawn")
print(multiprocessing.get_start_method())
