"""Command lines that tests describe by the names of options, and what a command line holds as such."""

from collections.abc import Iterator, Mapping

from clusterrun.job.declarations import Setting, flag
from clusterrun.job.options import NAMES
from clusterrun.job.sources import CommandLine, Layer, collected

FlagValue = str | bool | tuple[str, ...]
"""A flag's text; True if it takes none; all texts of a repeated one."""

Flags = Mapping[str, FlagValue]
"""By name in snake_case, aliases included."""


def command_line(flags: Flags, *words: str) -> CommandLine:
    """Return the line on which these flags and words are typed."""
    return CommandLine(
        collected(
            (NAMES[name], Setting(text, flag(name)))
            for name, value in flags.items()
            for text in _texts(value)
        ),
        words,
    )


def flags_of(options: Layer) -> dict[str, FlagValue]:
    """Return the flags that were typed, by the names of their options."""
    found: dict[str, FlagValue] = {}
    for name, texts in options.items():
        row = NAMES[name]
        if row.value.repeated:
            found[name] = tuple(text.value for text in texts)
        else:
            found[name] = texts[-1].value if row.metavar else True
    return found


def _texts(value: FlagValue) -> Iterator[str]:
    match value:
        case bool():
            yield str(value).lower()
        case str():
            yield value
        case _:
            yield from value
