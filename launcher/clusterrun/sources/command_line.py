"""The command line as it was typed, for hints with the whole line to type instead."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from clusterrun.sources.options.option import Kind, flag
from clusterrun.sources.options.table import OPTIONS
from clusterrun.sources.settings import Flags, FlagValue

OPTIONAL = {name for row in OPTIONS if row.kind is Kind.OPTIONAL for name in row.names}


class CommandLine(Struct, frozen=True):
    """The flags, and the words from SCRIPT on."""

    flags: Flags
    words: tuple[str, ...]

    def line(self, *more: str, before: Sequence[str] = ()) -> str:
        """Return the line, quoted for a shell, with ``more`` flags, and words ``before`` clusterrun."""
        from shlex import join

        flags = [word for name, value in self.flags.items() for word in _words(name, value)]
        return join([*before, "clusterrun", *flags, *more, *self.words])


def _words(name: str, value: FlagValue) -> Iterator[str]:
    match value:
        case bool():
            yield flag(name)
        case str() if name in OPTIONAL:
            yield f"{flag(name)}={value}"
        case str():
            yield from (flag(name), value)
        case _:
            for text in value:
                yield from (flag(name), text)
