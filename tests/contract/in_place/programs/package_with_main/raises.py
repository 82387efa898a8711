"""A traceback under -m begins with runpy's lines."""

from .other import name_of_other


def fail():
    raise RuntimeError(name_of_other())


fail()
