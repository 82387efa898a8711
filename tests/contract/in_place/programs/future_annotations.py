"""A __future__ import holds for the script, and only for it."""

from __future__ import annotations

import dataclasses
import typing

import __future__


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    layers: list[NotImported] | None = None


def train(config: Config, again: NotImported) -> None: ...


NotImported = int
number: NotImported = 3
print(Config.__annotations__, typing.get_type_hints(Config), typing.get_type_hints(train))
print(
    __annotations__,
    dataclasses.fields(Config)[1].type,
    Config(),
    annotations is __future__.annotations,
)
