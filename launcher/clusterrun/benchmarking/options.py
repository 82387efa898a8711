"""Options of ``clusterrun bench``; a job itself has none of them."""

import re
from typing import Annotated, ClassVar

from msgspec import Struct

from clusterrun.errors import UsageError
from clusterrun.job.declaring import Option, Value
from clusterrun.job.values import number, whole_number


class VariantText(Struct, frozen=True):
    """A variant as it is typed."""

    name: str
    options: tuple[str, ...]
    args: tuple[str, ...]
    """More arguments for the script."""


def counts(text: str) -> tuple[int, ...]:
    """Read numbers from 1, separated by commas; one that is repeated counts once."""
    numbers = [whole_number(part) for part in text.split(",")]
    found = [each for each in numbers if each]
    if len(found) < len(numbers):
        raise UsageError(f"{text!r} is not a list of numbers from 1", "give one such as 1,2,4,8")
    return tuple(dict.fromkeys(found))


def _variant(text: str) -> VariantText:
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


def _pattern(text: str) -> re.Pattern[str]:
    try:
        found = re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is not a regular expression: {error}", _EXAMPLE) from None
    if not found.groups:
        raise UsageError(f"{text!r} has no group for the number", _EXAMPLE)
    return found


_EXAMPLE = r"give one whose first group is the number: 'speed=([\d.]+)'"


class Measuring(Struct, frozen=True):
    """What it runs and reads."""

    title: ClassVar = "What clusterrun bench runs and reads"

    nproc: Annotated[
        tuple[int, ...],
        Value(counts, "N,..."),
        Option(
            "Numbers of workers on each node, such as 1,2,4,8; each is a run",
            default="1, then twice as many up to all visible GPUs",
        ),
    ] = ()
    variant: Annotated[
        tuple[VariantText, ...],
        Value(_variant, "'NAME: OPTIONS'", repeated=True),
        Option(
            "Run all sizes with these options, too; after -- come arguments for the script; may be"
            " repeated",
            default="one, without options of its own",
        ),
    ] = ()
    metric: Annotated[
        re.Pattern[str] | None,
        Value(_pattern, "REGEX"),
        Option(
            "How the script prints its throughput; the first group is the number",
            default="common forms, such as 512 images/s",
        ),
    ] = None
    warm_up: Annotated[
        int | None,
        number("a number from 0", hint="give one such as 3"),
        Option(
            "How many of the first numbers of each run to leave out",
            default="a fifth, at least one",
        ),
    ] = None
    rounds: Annotated[
        int,
        number("a number from 1", 1, hint="give one such as 3"),
        Option("How often to run each variant at each size; they take turns"),
    ] = 1
