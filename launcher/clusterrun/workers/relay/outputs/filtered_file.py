"""Writes lines that contain one of some texts to a file that several ranks share."""

import re
from collections.abc import Sequence

from clusterrun.workers.relay.outputs.log_files import FileOutput
from clusterrun.workers.relay.text.lines import with_prefix


class FilteredFile:
    """One rank's part of the file: whole lines, each with its ``prefix``."""

    def __init__(self, output: FileOutput, prefix: bytes, texts: Sequence[str]) -> None:
        """Take the file, opened to append to, and the texts, of which there is at least one."""
        self.output = output
        self._prefix = prefix
        self._pattern = any_of(texts)

    def add(self, lines: bytes) -> None:
        """Take whole lines; of a line that comes in pieces, those pieces that contain a text."""
        found = lines_with(self._pattern, lines)
        self.output.write(with_prefix(self._prefix, found, continues=False))


def any_of(texts: Sequence[str]) -> re.Pattern[bytes]:
    """Return a pattern that finds one of ``texts``, none of which has a line break in it."""
    return re.compile(b"|".join(re.escape(text.encode()) for text in texts))


def lines_with(pattern: re.Pattern[bytes], lines: bytes) -> bytes:
    """Return those of ``lines`` that contain ``pattern``, the last one ended if it is not."""
    found, end = b"", 0
    while match := pattern.search(lines, end):
        begin = lines.rfind(b"\n", end, match.start()) + 1 or end
        end = lines.find(b"\n", match.end()) + 1 or len(lines)
        found += lines[begin:end]
    return found if found.endswith(b"\n") or not found else found + b"\n"
