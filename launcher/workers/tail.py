"""The last lines of a worker's standard error, for the report."""

import re

TAIL_BYTES = 16 << 10
TAIL_LINES = 60

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, cursor movements
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[ -/]*[0-~]"  # the short ones
)
_CONTROLS = {code: None for code in [*range(0x20), *range(0x7F, 0xA0)] if chr(code) not in "\n\t"}


class Tail:
    """Keeps the end of a stream, in bounded memory."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._cut = False

    def add(self, lines: bytes) -> None:
        """Take whole lines, or the next piece of a long one."""
        self._kept += lines[-2 * TAIL_BYTES :]
        self._cut |= len(lines) > 2 * TAIL_BYTES
        if len(self._kept) > 4 * TAIL_BYTES:
            self._shorten()

    def text(self) -> str:
        """Return at most ``TAIL_LINES`` lines and about ``TAIL_BYTES``, without escape sequences."""
        self._shorten()
        lines = bytes(self._kept).splitlines()
        if self._cut and len(lines) > 1:
            # The first one lost its beginning.
            del lines[0]
        return plain(b"\n".join(lines[-TAIL_LINES:]))

    def _shorten(self) -> None:
        surplus = len(self._kept) - TAIL_BYTES
        if surplus > 0:
            del self._kept[:surplus]
            self._cut = True


def plain(text: bytes) -> str:
    """Return ``text`` decoded, undecodable bytes replaced, control characters and escapes removed."""
    return _ESCAPES.sub("", text.decode(errors="replace")).translate(_CONTROLS)
