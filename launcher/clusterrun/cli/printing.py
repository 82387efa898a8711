"""What clusterrun itself prints, on standard output and standard error."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress

from clusterrun.descriptor_output import write_within
from clusterrun.errors import ExitCode, MachineError, printable

SECONDS_TO_COMPLAIN = 2.0
"""How long a line may take on standard error when no relay prints it."""


def print_text(text: str) -> ExitCode:
    """Print what the user asked for to standard output.

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
    """Print to standard output what ``print_text`` prints of ``json_text``."""
    return print_text(json_text(value))


def json_text(value: object) -> str:
    """Return a struct, or what holds structs, as JSON; in ASCII, which is the same in every locale."""
    # On the way to a job nothing is printed as JSON.
    import json

    from msgspec import to_builtins

    # msgspec's own encoder refuses names and variables of other bytes than UTF-8.
    return json.dumps(to_builtins(value), indent=2)


def is_on_terminal() -> bool:
    """Return whether standard output is a terminal; it is None if it was closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def columns(environ: Mapping[str, str]) -> int | None:
    """Return how wide a table may be; None: as wide as it is, for a pipe or a file.

    watch(1) reads from a pipe, and says in COLUMNS how wide its terminal is.
    """
    import shutil

    return shutil.get_terminal_size().columns if is_on_terminal() or "COLUMNS" in environ else None


def complain(*lines: str) -> None:
    """Print lines to standard error; one that is closed, full or a stopped terminal delays nothing."""
    if sys.stderr is None or not lines:
        return
    text = "".join(f"{printable(line)}\n" for line in lines)
    with suppress(OSError):
        if sys.stderr is not sys.__stderr__:
            # The caller runs us in its own process and reads what is written there.
            sys.stderr.write(text)
        else:
            write_within(2, text.encode(), SECONDS_TO_COMPLAIN)


def warn(warnings: Iterable[str]) -> None:
    """Print all of them at once, so that a full standard error delays them together."""
    complain(*(f"clusterrun: {warning}" for warning in warnings))


def can_print(text: str) -> bool:
    """Return whether standard output has all characters of ``text``."""
    try:
        text.encode(_encoding())
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _printable(text: str) -> str:
    """Return the text with escapes for characters that standard output lacks: a path may have any."""
    return text.encode(_encoding(), "backslashreplace").decode(_encoding())


def _encoding() -> str:
    return getattr(sys.stdout, "encoding", None) or "ascii"
