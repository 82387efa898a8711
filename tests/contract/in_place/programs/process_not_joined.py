"""A process that nobody joins is joined at the end, a daemonic one is terminated."""

import multiprocessing
import time


def slow():
    time.sleep(0.1)
    print("slow one is done", flush=True)


def never():
    time.sleep(60)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    context.Process(target=slow).start()
    context.Process(target=never, daemon=True).start()
    print("main is done")
