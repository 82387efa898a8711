"""Reached by relative imports, two folders down."""

from .. import ARGV
from ..other import name_of_other

WHO = __name__


def up():
    return name_of_other(), len(ARGV)
