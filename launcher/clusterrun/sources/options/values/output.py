"""Read what is done with the workers' output."""

from clusterrun.domain.streams import Std, StreamChoice
from clusterrun.sources.options.values.numbers import whole_number
from clusterrun.sources.options.values.unreadable import UnreadableError


def streams(text: str) -> StreamChoice:
    """Read which streams: ``3`` for everyone, or ``LOCALRANK:N,...`` with any number of digits."""
    if "," not in text and ":" not in text:
        return StreamChoice(_std(text, text), {})
    named: dict[int, Std] = {}
    for part in text.split(","):
        rank_text, _, number = part.partition(":")
        rank = whole_number(rank_text)
        if rank is None:
            raise _no_streams(part)
        if rank in named:
            raise UnreadableError(
                f"{text!r} names local rank {rank} twice", "leave out one of them"
            )
        named[rank] = _std(number, part)
    return StreamChoice(Std.NONE, named)


def _std(number: str, text: str) -> Std:
    streams = whole_number(number)
    if streams is None or streams > Std.ALL:
        raise _no_streams(text)
    return Std(streams)


def _no_streams(text: str) -> UnreadableError:
    return UnreadableError(
        f"{text!r} does not say which streams",
        "give 1 for standard output, 2 for standard error, 3 for both, 0 for none, or that for each"
        " local rank: 0:3,1:2",
    )


def line_prefix(text: str) -> str | None:
    """Read the template of what stands before a line; "" is torchrun's way to say: the usual."""
    if len(text.splitlines()) > 1 or text.endswith(("\n", "\r")):
        raise UnreadableError(f"{text!r} is more than one line", "leave line breaks out")
    return text or None


def line_filters(text: str) -> tuple[str, ...]:
    """Read texts to look for in lines, separated by commas; two commas are one of a text's own."""
    found = tuple(part.replace("\0", ",") for part in text.replace(",,", "\0").split(","))
    if not all(found) or "\n" in text:
        raise UnreadableError(
            f"{text!r} has a text in it that no line or every line contains",
            "give texts such as error,warning; two commas stand for one that belongs to a text",
        )
    return found
