"""Read command lines."""

from clusterrun.errors import UsageError


def command(text: str) -> tuple[str, ...]:
    """Read a program and its arguments, quoted as for a shell."""
    # Few jobs have one.
    from shlex import split

    try:
        words = tuple(split(text))
    except ValueError as error:
        raise UsageError(
            f"{text!r} is no command: {error}", "quote its words as for a shell"
        ) from None
    if not words:
        raise UsageError("the command is empty", "give a program and its arguments")
    return words
