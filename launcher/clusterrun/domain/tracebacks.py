"""Python's tracebacks in what a worker has printed to standard error: where they begin and end."""

import re
from collections.abc import Sequence

TRACEBACK = "Traceback (most recent call last):"
GROUP_TRACEBACK = f"  + Exception Group {TRACEBACK}"
CHAINS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
HARMLESS = ("Exception ignored ", "Error in atexit._run_exitfuncs:")
"""Lines before tracebacks of exceptions that end nothing."""

LIVED_ON = 60
"""So many lines after a traceback, or more, show that it was logged and the script went on."""

FIRST_FRAMES = 12
"""Lines of a traceback's beginning that are kept, its header included."""

FIRST_OF_MESSAGE = 8
"""Lines that are kept of an exception with a long message."""

_OUTERMOST = ("in <module>", "in _run_module_as_main")
_LEFT_OUT = re.compile(r"\s*\.\.\. (\d+) lines left out \.\.\.")


def plain_lines(text: str) -> list[str]:
    """Return the lines of ``text`` as a terminal shows them, without colours."""
    lines = [_plain(line) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def last_traceback(lines: Sequence[str]) -> int | None:
    """Return where the traceback begins that tells best why the script ended; None: there is none."""
    loud = [i for i in tracebacks(lines) if i == 0 or not lines[i - 1].startswith(HARMLESS)]
    # What ends the interpreter went through the whole script; finalizers and threads didn't.
    fatal = [i for i in loud if lines[i + 1 : i + 2] and lines[i + 1].endswith(_OUTERMOST)]
    return max(fatal or loud, default=None)


def tracebacks(lines: Sequence[str]) -> list[int]:
    """Return where tracebacks begin."""
    return [i for i, line in enumerate(lines) if line in (TRACEBACK, GROUP_TRACEBACK)]


def exception_after(lines: Sequence[str], header: int) -> int:
    """Return where the exception stands whose traceback begins at ``header``."""
    indentation = "  |  " if lines[header] == GROUP_TRACEBACK else " "
    for i, line in enumerate(lines[header + 1 :], header + 1):
        if line and not line.startswith(indentation) and not _LEFT_OUT.fullmatch(line):
            return i
    return len(lines)


def lived_on(after: Sequence[str]) -> bool:
    """Tell whether the script went on, by an exception's line and all ``after`` it.

    The lines of a long message are indented.
    """
    return sum(_weight(line) for line in after if _begins_anew(line)) > LIVED_ON


def without_ignored(lines: Sequence[str]) -> list[str]:
    """Return ``lines`` without the tracebacks of exceptions that end nothing."""
    kept: list[str] = []
    end = 0
    # Node 0 looks through the last words of all ranks of a job.
    if not any(line.startswith(HARMLESS) for line in lines):
        return list(lines)
    for header in tracebacks(lines):
        if header > end and lines[header - 1].startswith(HARMLESS):
            kept += lines[end : header - 1]
            end = exception_after(lines, header) + 1
    return [*kept, *lines[end:]]


def with_beginning(before: Sequence[str], end: Sequence[str]) -> list[str]:
    """Return ``end`` and, where it is the end of a traceback, its beginning.

    Args:
        before: the lines before ``end``, or what ``beginning_of_traceback`` returns for them.
        end: the last lines of a worker's standard error.

    """
    beginning = beginning_of_traceback(before)
    matters = beginning and beginning_of_traceback([*beginning, *end])
    return [*beginning, *end] if matters else list(end)


def beginning_of_traceback(lines: Sequence[str]) -> list[str]:
    """Return what a report may need of ``lines``, which go on: the last traceback without its middle."""
    header = last_traceback(lines)
    if header is None:
        return []
    exception = exception_after(lines, header)
    after = lines[exception:]
    if lived_on(after):
        return []
    frames = shortened(lines[header:exception], FIRST_FRAMES, indent="  ")
    others = (i for i, line in enumerate(after) if i and _begins_anew(line))
    end_of_message = next(others, len(after))
    message = shortened(after[:end_of_message], FIRST_OF_MESSAGE, indent="  ")
    return [*frames, *message, *shortened(after[end_of_message:], 0)]


def shortened(lines: Sequence[str], first: int, last: int = 0, *, indent: str = "") -> list[str]:
    """Return the ``first`` and the ``last`` lines, and between them how many are left out."""
    middle = lines[first : max(first, len(lines) - last)]
    if len(middle) < 2:
        return list(lines)
    count = sum(map(_weight, middle))
    return [
        *lines[:first],
        f"{indent}... {count} lines left out ...",
        *lines[first + len(middle) :],
    ]


def _plain(line: str) -> str:
    shown = line.rstrip().rpartition("\r")[2]
    shown = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", shown)
    # torch's excepthook puts the rank before each line; the report has named it already.
    shown = re.sub(r"^\[rank\d+\]: ", "", shown)
    return "".join(sign for sign in shown if sign.isprintable() or sign == "\t")


def _weight(line: str) -> int:
    """Return how many lines a line stands for."""
    left_out = _LEFT_OUT.fullmatch(line)
    return int(left_out[1]) if left_out else 1


def _begins_anew(line: str) -> bool:
    """Tell whether a line after an exception's first one is not a part of its message."""
    return line != "" and not line.startswith((" ", "\t"))
