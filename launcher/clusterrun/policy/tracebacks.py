"""Finding Python tracebacks in a worker's standard error."""

import re
from collections.abc import Sequence

TRACEBACK = "Traceback (most recent call last):"
GROUP_TRACEBACK = f"  + Exception Group {TRACEBACK}"
_BOX = r"[╭+][─-]+ Traceback \(most recent call last\) [─-]+[╮+]"
"""A header as rich and typer draw it, in Unicode or ASCII."""
_IN_A_BOX = ("│", "|", "╰", "+-")

CHAINS = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
HARMLESS = ("Exception ignored ", "Error in atexit._run_exitfuncs:")
"""The line before the traceback of an exception that does not end the script."""

MAX_LINES_AFTER = 60
"""If more lines follow a traceback, it was logged and the script continued."""

FIRST_FRAMES = 12
"""Lines that are kept at the beginning of a traceback, with its header."""

FIRST_OF_MESSAGE = 8
"""Lines that are kept at the beginning of an exception's message."""

_OUTERMOST = ("in <module>", "in _run_module_as_main")
_LEFT_OUT = r"\s*\.\.\. (\d{1,9}) lines omitted \.\.\."


def plain_lines(text: str) -> list[str]:
    """Return the lines of ``text`` as a terminal shows them, without colours or empty last lines."""
    lines = [_plain(line) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def last_traceback(lines: Sequence[str]) -> int | None:
    """Return the index of the traceback that best explains the end of the script, if there is one."""
    harmful = [i for i in tracebacks(lines) if i == 0 or not lines[i - 1].startswith(HARMLESS)]
    # The exception that ends the script passes its outermost frame. Exceptions in finalizers and
    # threads do not.
    first_frames = ((i, lines[i + 1].rstrip(" │|")) for i in harmful if i + 1 < len(lines))
    fatal = [i for i, frame in first_frames if frame.endswith(_OUTERMOST)]
    return max(fatal or harmful, default=None)


def tracebacks(lines: Sequence[str]) -> list[int]:
    """Return the indices of the lines where tracebacks start."""
    return [
        i
        for i, line in enumerate(lines)
        if line in (TRACEBACK, GROUP_TRACEBACK)
        or (TRACEBACK[:-1] in line and re.fullmatch(_BOX, line))
    ]


def exception_after(lines: Sequence[str], header: int) -> int:
    """Return the index of the exception whose traceback starts at index ``header``."""
    indentations = {TRACEBACK: (" ",), GROUP_TRACEBACK: ("  |  ",)}
    indentation = indentations.get(lines[header], _IN_A_BOX)
    for i, line in enumerate(lines[header + 1 :], header + 1):
        if line and not line.startswith(indentation) and not re.fullmatch(_LEFT_OUT, line):
            return i
    return len(lines)


def script_continued(after: Sequence[str]) -> bool:
    """Return whether the script continued, by the exception's line and all lines after it."""
    return sum(_weight(line) for line in after if _starts_other_output(line)) > MAX_LINES_AFTER


def without_ignored(lines: Sequence[str]) -> list[str]:
    """Return ``lines`` without the tracebacks of exceptions that do not end the script."""
    kept: list[str] = []
    end = 0
    # Node 0 does this for the output of all ranks of the job.
    if not any(line.startswith(HARMLESS) for line in lines):
        return list(lines)
    for header in tracebacks(lines):
        if header > end and lines[header - 1].startswith(HARMLESS):
            kept += lines[end : header - 1]
            end = exception_after(lines, header) + 1
    return [*kept, *lines[end:]]


def with_beginning(before: Sequence[str], end: Sequence[str]) -> list[str]:
    """Return ``end``, after the beginning of the traceback that it is the end of.

    ``before``: the lines before ``end``, or what ``beginning_of_traceback`` returns for them.
    """
    beginning = beginning_of_traceback(before)
    matters = beginning and beginning_of_traceback([*beginning, *end])
    return [*beginning, *end] if matters else list(end)


def beginning_of_traceback(lines: Sequence[str]) -> list[str]:
    """Return the last traceback of ``lines`` without its middle, if a report may need it."""
    header = last_traceback(lines)
    if header is None:
        return []
    exception = exception_after(lines, header)
    after = lines[exception:]
    if script_continued(after):
        return []
    frames = shortened(lines[header:exception], FIRST_FRAMES, indent="  ")
    others = (i for i, line in enumerate(after) if i and _starts_other_output(line))
    end_of_message = next(others, len(after))
    message = shortened(after[:end_of_message], FIRST_OF_MESSAGE, indent="  ")
    return [*frames, *message, *shortened(after[end_of_message:], 0)]


def shortened(lines: Sequence[str], first: int, last: int = 0, *, indent: str = "") -> list[str]:
    """Return the ``first`` and ``last`` lines, and between them the number of omitted lines."""
    middle = lines[first : max(first, len(lines) - last)]
    if len(middle) < 2:
        return list(lines)
    count = sum(map(_weight, middle))
    return [
        *lines[:first],
        f"{indent}... {count} lines omitted ...",
        *lines[first + len(middle) :],
    ]


def _plain(line: str) -> str:
    shown = line.rstrip().rpartition("\r")[2]
    shown = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", shown)
    # torch's excepthook puts the rank before each line; the report names the rank anyway.
    shown = re.sub(r"^\[rank\d+\]: ", "", shown)
    if shown.isprintable():
        # Nearly all lines are, and a large job has millions of characters.
        return shown
    return "".join(char for char in shown if char.isprintable() or char == "\t")


def _weight(line: str) -> int:
    """Return how many lines of the original output a line stands for."""
    omitted = re.fullmatch(_LEFT_OUT, line)
    return int(omitted[1]) if omitted else 1


def _starts_other_output(line: str) -> bool:
    """Return whether a line after an exception's first one does not belong to its message."""
    return line != "" and not line.startswith((" ", "\t"))
