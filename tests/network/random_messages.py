"""Messages with random values within their bounds: for ``hostile_sessions``."""

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

from msgspec import Struct, inspect
from msgspec.structs import asdict, replace

TEXTS = (
    *("", "n1", "n0", "main", "server", "fork server", "clusterrun suspend", "agent 1", "default"),
    *("exit code 1", "x" * 255, "1, 2\n3", "x" * 5000),
    "gloo" * 3000,
    "Traceback (most recent call last):\nValueError: it",
    f"Traceback (most recent call last):\nValueError: it\n  ... {'9' * 5000} lines omitted ...",
    '{"message": {"message": "it", "extraInfo": {"py_callstack": []}}}',
)
SMALL = (0, 0, 1, 1, 1, 2, 2, 3, 4, 5, 9, 15)
SECONDS = (0.0, 0.0, 0.001, 0.5, 5.0, 60.0, 1e6)

Draw = Callable[[Random], Any]


@cache
def drawing(kind: Any) -> Draw:
    """Return what draws values of a type."""
    return _drawing(inspect.type_info(kind))


@cache
def _fields(kind: type[Struct]) -> Sequence[tuple[str, Draw]]:
    made = inspect.type_info(kind)
    assert isinstance(made, inspect.StructType)
    return [(field.name, _drawing(field.type)) for field in made.fields]


def changed(dice: Random, message: Struct) -> Struct:
    """Return a message with another value in one field of it, or of what it holds."""
    name, draw = dice.choice([*_fields(type(message)), ("", bool)])
    if not name:
        return message
    inner = asdict(message)[name]
    if isinstance(inner, Struct) and dice.random() < 0.8:
        return replace(message, **{name: changed(dice, inner)})
    if isinstance(inner, tuple) and inner and isinstance(inner[0], Struct) and dice.random() < 0.7:
        at = dice.randrange(len(inner))
        others = (*inner[:at], changed(dice, inner[at]), *inner[at + 1 :])
        return replace(message, **{name: dice.choice([others, others, inner + inner, ()])})
    return replace(message, **{name: draw(dice)})


def _drawing(kind: inspect.Type) -> Draw:
    match kind:
        case inspect.IntType():
            return _drawing_integers(kind)
        case inspect.FloatType(ge=least, le=most):
            low, high = float(least or 0.0), float(1e10 if most is None else most)
            seconds = [*(it for it in SECONDS if low <= it <= high), high]
            return lambda dice: dice.choice(seconds)
        case inspect.StrType(max_length=longest):
            texts = [it for it in TEXTS if longest is None or len(it) <= longest]
            if longest == 255:
                texts = [it for it in texts if "\n" not in it]
            return lambda dice: dice.choice(texts)
        case inspect.BytesType():
            return lambda dice: dice.choice([b"", b"\xc1", b"\x91\x90", dice.randbytes(9)])
        case inspect.BoolType():
            return lambda dice: dice.random() < 0.5
        case inspect.NoneType():
            return lambda _dice: None
        case inspect.EnumType(cls=members):
            each = list(members)
            return lambda dice: dice.choice(each)
        case inspect.UnionType(types=types):
            draws = [_drawing(it) for it in types]
            return lambda dice: dice.choice(draws)(dice)
        case inspect.VarTupleType(item_type=item, max_length=most):
            return _drawing_tuples(_drawing(item), most)
        case inspect.DictType(key_type=key, value_type=value):
            one, other = _drawing(key), _drawing(value)
            return lambda dice: {one(dice): other(dice) for _ in range(dice.choice([0, 1, 3]))}
        case inspect.StructType(cls=struct):
            return lambda dice: struct(**{name: draw(dice) for name, draw in _fields(struct)})
        case _:
            raise AssertionError(kind)


def _drawing_integers(kind: inspect.IntType) -> Draw:
    low = kind.ge or 0
    high = kind.le if kind.le is not None else (kind.lt or 1 << 62) - 1
    small = [it for it in SMALL if low <= it <= high]

    def draw(dice: Random) -> int:
        if dice.random() < 0.75:
            return dice.choice(small)
        return dice.choice([low, high, dice.randint(low, high)])

    return draw


def _drawing_tuples(draw: Draw, most: int | None) -> Draw:
    longest = 1024 if most is None else most

    def drawn(dice: Random) -> tuple[Any, ...]:
        many = min(longest, 1024) if dice.random() < 0.1 else 20
        number = dice.choice([0, 1, 1, 1, 2, 3, many])
        items = [draw(dice) for _ in range(min(number, 3))]
        # Equal ones are as good, and quicker.
        return tuple(items[at % len(items)] for at in range(number)) if items else ()

    return drawn
