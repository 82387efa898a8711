"""Enums, named tuples, protocols and abstract classes of __main__ have its name."""

import abc
import collections
import enum
import typing


class Colour(enum.Enum):
    RED = 1


class Base(abc.ABC):
    @abc.abstractmethod
    def method(self): ...


Point = collections.namedtuple("Point", "x y")
Typed = typing.NamedTuple("Typed", [("x", int)])
print(Colour.RED, Colour.__module__, Point.__module__, Typed.__module__, Base.__module__)
print(typing.get_type_hints(Typed), Colour, Base, abc.get_cache_token() > 0)
print(
    collections.namedtuple("Other", "a", module="else").__module__, type("Made", (), {}).__module__
)
