"""The lines of a worker's standard error or error file that show why it failed."""

import json
import re
from collections.abc import Sequence

from clusterrun.policy.outcome import WorkerResult
from clusterrun.policy.tracebacks import (
    CHAINS,
    exception_after,
    last_traceback,
    plain_lines,
    script_continued,
    shortened,
    tracebacks,
)

_SYNTAX = ("SyntaxError: ", "IndentationError: ", "TabError: ")
_NOT_COMPILED = re.compile(r'  File "(?P<file>.+)", (?P<line>line \d+)')
_FATAL = ("Fatal Python error: ", "terminate called ")
_MAX_LINES = 20
_MAX_LINES_OF_FATAL_ERROR = 60
_MAX_WIDTH = 400
_MAX_ERROR = 20_000


def excerpt(tail: str) -> list[str]:
    """Return the lines to show.

    These are the last traceback with the tracebacks that it is chained to and the lines after it, or else
    the lines of a fatal error, or else the last 20 lines. Long tracebacks are shortened.
    """
    lines = plain_lines(tail)
    header = last_traceback(lines)
    if header is None:
        return [_cut(line) for line in lines[_fatal_error(lines) :]]
    exception = exception_after(lines, header)
    traceback = shortened(lines[_first_of_chain(lines, header) : exception], 10, 40)
    return [_cut(line) for line in traceback + shortened(lines[exception:], 8, 12)]


def exception_line(tail: str) -> str:
    """Return the first line of the exception at the end, "ValueError: boom"; "" if there is none.

    The file and line of a syntax error follow, as in Python's ``str``.
    """
    lines = plain_lines(tail)
    header = last_traceback(lines)
    if header is None:
        # The error of a script that does not compile has no frames and no header.
        is_syntax = bool(lines) and lines[-1].startswith(_SYNTAX)
        return _cut(lines[-1]) + _syntax_error_location(lines[:-1]) if is_syntax else ""
    exception = exception_after(lines, header)
    found = lines[exception:]
    if not found or script_continued(found):
        return ""
    is_syntax = found[0].startswith(_SYNTAX)
    location = _syntax_error_location(lines[:exception]) if is_syntax else ""
    return _cut(found[0].removeprefix("  | ")) + location


def exception_of(result: WorkerResult) -> str:
    """Return the exception of a worker, from its standard error or else its error file."""
    return exception_line(result.tail) or exception_line(decode_error_file(result.error))


def _syntax_error_location(before: Sequence[str]) -> str:
    """Return " (train.py, line 2)", by the indented lines directly before the error."""
    for line in reversed(before):
        if match := _NOT_COMPILED.fullmatch(line):
            return f" ({match['file'].rpartition('/')[2]}, {match['line']})"
        if not line.startswith("    "):
            break
    return ""


def _first_of_chain(lines: Sequence[str], header: int) -> int:
    before = [line for line in lines[:header] if line]
    if not before or before[-1] not in CHAINS:
        return header
    link = max(i for i in range(header) if lines[i] in CHAINS)
    earlier = tracebacks(lines[:link])
    return _first_of_chain(lines, earlier[-1]) if earlier else 0


def _fatal_error(lines: Sequence[str]) -> int:
    fatal = [i for i, line in enumerate(lines) if line.startswith(_FATAL)]
    most = _MAX_LINES_OF_FATAL_ERROR if fatal else _MAX_LINES
    return max(fatal[-1] if fatal else 0, len(lines) - most, 0)


def _cut(line: str) -> str:
    return line if len(line) <= _MAX_WIDTH else f"{line[:_MAX_WIDTH]} ..."


def decode_error_file(text: str) -> str:
    """Return the message and traceback in a TORCHELASTIC_ERROR_FILE, or its text if that is not known.

    ``torch.distributed.elastic.multiprocessing.errors`` (2.15) writes
    ``{"message": {"message": TEXT, "extraInfo": {"py_callstack": TRACEBACK, ...}}}`` for ``@record``,
    and otherwise ``{"message": TEXT}``.
    """
    try:
        known = _message_and_traceback(json.loads(text))
    except (ValueError, RecursionError):
        known = ""
    return (known or text).strip()[-_MAX_ERROR:]


def _message_and_traceback(document: object) -> str:
    entry = _get(document, "message")
    if isinstance(entry, str):
        return entry
    message = _text(_get(entry, "message"))
    traceback = _text(_get(_get(entry, "extraInfo"), "py_callstack"))
    return traceback if message in traceback else f"{message}\n{traceback}"


def _get(document: object, key: str) -> object:
    return document.get(key) if isinstance(document, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
