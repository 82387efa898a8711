"""The code object that runs, and its flags: no __future__ import of the launcher's holds in it."""

import dataclasses
import sys
import typing

code = sys._getframe().f_code
print(code.co_name, code.co_filename, code.co_firstlineno, bin(code.co_flags))
print(code.co_consts[0], len(code.co_names), code.co_names[:3])


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    next: "Config | None" = None


number: int = 3
print(Config.__annotations__, typing.get_type_hints(Config), __annotations__)
print(eval("1 if True else 0"), compile("x: int", "x", "exec").co_flags)
exec("y: int = 1")
print(__annotations__)
