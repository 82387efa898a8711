"""Pool by spawn from a module run by -m: the child imports it by its name, not by its path."""

import multiprocessing

from .other import name_of_other


def work(number):
    return number, __name__, __package__, name_of_other()


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [1, 2]))
