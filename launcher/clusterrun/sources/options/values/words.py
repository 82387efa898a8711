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


def ssh_options(text: str) -> tuple[str, ...]:
    """Read options of ssh(1), quoted as for a shell."""
    words = command(text)
    if not words[0].startswith("-"):
        raise UsageError(
            f"{text!r} is not a list of options for ssh", "write it as in '-p 2222 -J gate'"
        )
    return words
