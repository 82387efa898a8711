"""Annotations are evaluated, as no __future__ import says otherwise."""

import dataclasses
import typing


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    next: "Config | None" = None


number: int = 3
print(Config.__annotations__, typing.get_type_hints(Config), __annotations__)
print(eval("1 if True else 0"), compile("x: int", "x", "exec").co_flags)
exec("y: int = 1")
print(__annotations__)
