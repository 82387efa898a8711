"""Printing of clusterrun's own text to standard output and standard error."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

from clusterrun.descriptor_output import write_within
from clusterrun.errors import ExitCode, MachineError, printable

SECONDS_TO_COMPLAIN = 2.0
"""Time limit for writing to standard error without a relay."""


def print_text(text: str) -> ExitCode:
    """Print to standard output.

    Raises:
        BrokenPipeError: the reader has closed the pipe.
        MachineError: standard output can't be written.

    """
    try:
        print(_printable(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise MachineError(f"standard output can't be written: {error.strerror}") from None
    return ExitCode.SUCCESS


def print_json(value: object) -> ExitCode:
    """Print ``json_text(value)`` to standard output; errors are those of ``print_text``."""
    return print_text(json_text(value))


def json_text(value: object) -> str:
    """Return a struct, or a container of structs, as JSON in ASCII, which is the same in every locale."""
    # Imported here, because starting a job needs no JSON.
    import json

    from msgspec import to_builtins

    # msgspec's own encoder rejects paths and variables that are not UTF-8.
    return json.dumps(to_builtins(value), indent=2)


def is_on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    # It is None if it was closed.
    return sys.stdout is not None and sys.stdout.isatty()


def columns(environ: Mapping[str, str]) -> int | None:
    """Return the maximum width of a table; None for no limit, if the output is a pipe or a file.

    watch(1) reads from a pipe and sets COLUMNS to the width of its terminal.
    """
    import shutil

    return shutil.get_terminal_size().columns if is_on_terminal() or "COLUMNS" in environ else None


def complain(*lines: str) -> None:
    """Print lines to standard error, unless it is closed, full or a stopped terminal."""
    if sys.stderr is None or not lines:
        return
    text = "".join(f"{printable(line)}\n" for line in lines)
    with suppress(OSError):
        if sys.stderr is not sys.__stderr__:
            # Whoever replaced sys.stderr in this process reads what is written to it.
            sys.stderr.write(text)
        else:
            write_within(2, text.encode(), SECONDS_TO_COMPLAIN)


def warn(warnings: Iterable[str]) -> None:
    """Print warnings in one write, so that the time limit applies to all together."""
    complain(*(f"clusterrun: {warning}" for warning in warnings))


def can_print(text: str) -> bool:
    """Return whether the encoding of standard output has all characters of ``text``."""
    try:
        text.encode(_encoding())
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _printable(text: str) -> str:
    """Escape the characters that the encoding of standard output lacks."""
    return text.encode(_encoding(), "backslashreplace").decode(_encoding())


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "ascii"
