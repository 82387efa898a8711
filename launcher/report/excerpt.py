"""The part of a worker's standard error that says why it failed."""

import re
from collections.abc import Sequence

from launcher.domain.outcome import Fate
from launcher.report.error_file import decode_error_file

_TRACEBACK = "Traceback (most recent call last):"
_GROUP_TRACEBACK = f"  + Exception Group {_TRACEBACK}"
_CHAINS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_HARMLESS = ("Exception ignored ", "Error in atexit._run_exitfuncs:")
_OUTERMOST = ("in <module>", "in _run_module_as_main")
_SYNTAX = ("SyntaxError: ", "IndentationError: ", "TabError: ")
_NOT_COMPILED = re.compile(r'  File "(?P<file>.+)", (?P<line>line \d+)')
_FATAL = ("Fatal Python error: ", "terminate called ")
_WITHOUT_MARK = 20
_LIVED_ON = 60
_WIDEST = 400


def excerpt(tail: str) -> list[str]:
    """Return the lines that matter of ``tail``.

    That is the last traceback with those it is chained to and what was printed after it, or
    else the interpreter's last words, or else the last 20 lines. Long stretches are cut out.
    """
    lines = plain_lines(tail)
    header = _last_traceback(lines)
    if header is None:
        return [_cut(line) for line in lines[_last_words(lines) :]]
    exception = _exception_after(lines, header)
    story = _shorten(lines[_first_of_chain(lines, header) : exception], 10, 40)
    return [_cut(line) for line in story + _shorten(lines[exception:], 8, 12)]


def exception_line(tail: str) -> str:
    """Return the first line of the exception that ends ``tail``, "ValueError: boom", or "".

    Where a file could not be compiled, that and the line in it follow, as Python's ``str`` has it.
    """
    lines = plain_lines(tail)
    header = _last_traceback(lines)
    if header is None:
        # The script itself has no frames yet, and so no header.
        is_syntax = bool(lines) and lines[-1].startswith(_SYNTAX)
        return _cut(lines[-1]) + _place(lines[:-1]) if is_syntax else ""
    exception = _exception_after(lines, header)
    found = lines[exception:]
    # A traceback that much was printed after was logged, and life went on.
    if not 0 < len(found) <= _LIVED_ON:
        return ""
    place = _place(lines[:exception]) if found[0].startswith(_SYNTAX) else ""
    return _cut(found[0].removeprefix("  | ")) + place


def exception_of(fate: Fate) -> str:
    """Return the exception that ended the worker, by its standard error or its error file."""
    return exception_line(fate.tail) or exception_line(decode_error_file(fate.error))


def plain_lines(text: str) -> list[str]:
    """Return the lines of ``text`` as a terminal shows them, without colours."""
    lines = [_plain(line) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _plain(line: str) -> str:
    shown = line.rstrip().rpartition("\r")[2]
    shown = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", shown)
    # torch's excepthook puts the rank before each line; the report has named it already.
    shown = re.sub(r"^\[rank\d+\]: ", "", shown)
    return "".join(sign for sign in shown if sign.isprintable() or sign == "\t")


def _last_traceback(lines: Sequence[str]) -> int | None:
    headers = _tracebacks(lines)
    loud = [i for i in headers if i == 0 or not lines[i - 1].startswith(_HARMLESS)]
    # What ends the interpreter went through the whole script; finalizers and threads didn't.
    fatal = [i for i in loud if lines[i + 1 : i + 2] and lines[i + 1].endswith(_OUTERMOST)]
    return max(fatal or loud or headers, default=None)


def _tracebacks(lines: Sequence[str]) -> list[int]:
    return [i for i, line in enumerate(lines) if line in (_TRACEBACK, _GROUP_TRACEBACK)]


def _exception_after(lines: Sequence[str], header: int) -> int:
    indentation = "  |  " if lines[header] == _GROUP_TRACEBACK else " "
    for i, line in enumerate(lines[header + 1 :], header + 1):
        if line and not line.startswith(indentation):
            return i
    return len(lines)


def _place(before: Sequence[str]) -> str:
    """Return where Python found a syntax error, by the indented lines right ``before`` it."""
    for line in reversed(before):
        if match := _NOT_COMPILED.fullmatch(line):
            return f" ({match['file'].rpartition('/')[2]}, {match['line']})"
        if not line.startswith("    "):
            break
    return ""


def _first_of_chain(lines: Sequence[str], header: int) -> int:
    before = [line for line in lines[:header] if line]
    if not before or before[-1] not in _CHAINS:
        return header
    link = max(i for i in range(header) if lines[i] in _CHAINS)
    earlier = _tracebacks(lines[:link])
    return _first_of_chain(lines, earlier[-1]) if earlier else 0


def _last_words(lines: Sequence[str]) -> int:
    words = [i for i, line in enumerate(lines) if line.startswith(_FATAL)]
    return max(words[-1] if words else 0, len(lines) - (60 if words else _WITHOUT_MARK), 0)


def _shorten(lines: list[str], first: int, last: int) -> list[str]:
    left_out = len(lines) - first - last
    if left_out < 2:
        return lines
    return [*lines[:first], f"... {left_out} lines left out ...", *lines[-last:]]


def _cut(line: str) -> str:
    return line if len(line) <= _WIDEST else f"{line[:_WIDEST]} ..."
