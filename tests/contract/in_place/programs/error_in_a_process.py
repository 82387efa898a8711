"""A child process prints its traceback and ends with 1; the script goes on."""

import multiprocessing


def fail():
    raise LookupError("in the child")


if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=fail, name="child")
    process.start()
    process.join()
    print(process.exitcode)
