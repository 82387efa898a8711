"""The command as it was typed, for hints that say the whole line to type instead."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from clusterrun.sources.options.option import Kind, flag
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.settings import Flags, Given

OPTIONAL = {name for row in OPTIONS if row.kind is Kind.OPTIONAL for name in row.names}


class CommandLine(Struct, frozen=True):
    """What stood on the command line."""

    flags: Flags
    words: tuple[str, ...]

    def line(self, *more: str, before: Sequence[str] = ()) -> str:
        """Return the line, quoted for a shell, with ``more`` flags and words ``before`` it."""
        from shlex import join

        flags = [word for name, given in self.flags.items() for word in _words(name, given)]
        return join([*before, "clusterrun", *flags, *more, *self.words])


def _words(name: str, given: Given) -> Iterator[str]:
    match given:
        case bool():
            yield flag(name)
        case str() if name in OPTIONAL:
            yield f"{flag(name)}={given}"
        case str():
            yield from (flag(name), given)
        case _:
            for text in given:
                yield from (flag(name), text)
