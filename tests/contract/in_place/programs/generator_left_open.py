"""A generator that is left in the middle gets its finally at the end."""

import contextlib


def lines():
    try:
        yield 1
        yield 2
    finally:
        print("finally of the generator")


@contextlib.contextmanager
def opened():
    try:
        yield
    finally:
        print("finally of the context")


generator = lines()
context = opened()
print(next(generator), context.__enter__())
