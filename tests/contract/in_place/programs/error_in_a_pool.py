"""An exception in a child process comes back with the child's traceback, and ends the script."""

import multiprocessing


def fail(number):
    return 1 / number


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.map(fail, [0])
