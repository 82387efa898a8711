"""Read what ``clusterrun bench`` is to run and to look for."""

import re

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.sources.options.values.numbers import whole_number


class VariantText(Struct, frozen=True):
    """A variant as it is typed."""

    name: str
    options: tuple[str, ...]
    args: tuple[str, ...]
    """More arguments for the script."""


def counts(text: str) -> tuple[int, ...]:
    """Read numbers from 1, separated by commas; one that is repeated counts once."""
    numbers = [whole_number(part) for part in text.split(",")]
    found = [number for number in numbers if number]
    if len(found) < len(numbers):
        raise UsageError(f"{text!r} is not a list of numbers from 1", "give one such as 1,2,4,8")
    return tuple(dict.fromkeys(found))


def count(text: str) -> int:
    return _one(text, lowest=1)


def count_from_zero(text: str) -> int:
    return _one(text, lowest=0)


def _one(text: str, lowest: int) -> int:
    number = whole_number(text)
    if number is None or number < lowest:
        raise UsageError(f"{text!r} is not a number from {lowest}", "give one such as 3")
    return number


def variant(text: str) -> VariantText:
    """Read ``NAME: OPTIONS`` or ``NAME: OPTIONS -- ARGUMENTS``."""
    name, colon, rest = text.partition(":")
    example = "give a name and options: 'unbound: --numa-binding none'"
    if not colon:
        raise UsageError(f"{text!r} has no name", example)
    if not re.fullmatch(r"[\w.+-]+", name) or name.strip(".") == "":
        raise UsageError(
            f"{name!r} is no name: it may have letters, digits, _, ., + and -", example
        )
    import shlex

    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"{text!r}: {error}", "close the quotes") from None
    at = words.index("--") if "--" in words else len(words)
    return VariantText(name, tuple(words[:at]), tuple(words[at + 1 :]))


def pattern(text: str) -> re.Pattern[str]:
    """Read a regular expression with a group."""
    try:
        found = re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is not a regular expression: {error}", _EXAMPLE) from None
    if not found.groups:
        raise UsageError(f"{text!r} has no group for the number", _EXAMPLE)
    return found


_EXAMPLE = r"give one whose first group is the number: 'speed=([\d.]+)'"
