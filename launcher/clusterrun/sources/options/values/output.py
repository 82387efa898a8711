"""Read which output goes where: streams, prefixes, filters."""

from clusterrun.domain.streams import Std, StreamChoice
from clusterrun.errors import UsageError
from clusterrun.sources.options.values.numbers import whole_number


def streams(text: str) -> StreamChoice:
    """Read streams: ``3`` for all workers, or ``LOCALRANK:N,...``."""
    if "," not in text and ":" not in text:
        return StreamChoice(_std(text, text), {})
    named: dict[int, Std] = {}
    for part in text.split(","):
        rank_text, _, number = part.partition(":")
        rank = whole_number(rank_text)
        if rank is None:
            raise _no_streams(part)
        if rank in named:
            raise UsageError(f"{text!r} names local rank {rank} twice", "leave out one of them")
        named[rank] = _std(number, part)
    return StreamChoice(Std.NONE, named)


def _std(number: str, text: str) -> Std:
    streams = whole_number(number)
    if streams is None or streams > Std.ALL:
        raise _no_streams(text)
    return Std(streams)


def _no_streams(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a choice of streams",
        "give 1 for standard output, 2 for standard error, 3 for both, 0 for none, or such a"
        " number for each local rank: 0:3,1:2",
    )


def line_prefix(text: str) -> str | None:
    """Read the template of the prefix of lines; "" means the default, as with torchrun."""
    if len(text.splitlines()) > 1 or text.endswith(("\n", "\r")):
        raise UsageError(f"{text!r} is more than one line", "leave line breaks out")
    return text or None


def line_filters(text: str) -> tuple[str, ...]:
    """Read texts to look for in lines, separated by commas; ``,,`` is a comma in a text."""
    found = tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    if not all(found) or "\n" in text:
        raise UsageError(
            f"{text!r} has an empty text or a line break in it",
            "give texts such as error,warning; write ,, for a comma in a text",
        )
    return found
