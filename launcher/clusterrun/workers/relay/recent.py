"""What a worker has printed last, on both streams, for those who look into the running job."""

RECENT_BYTES = 64 << 10
"""Kept of each worker; at most twice as much before it is cut."""


class Recent:
    """Keeps the end of what one worker prints, in bounded memory.

    Positions count the bytes of all that it has printed: a reader that comes again goes on where
    it was.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._begins_at = 0
        self._read_at = 0.0
        self.has_printed = False
        self.lines = 0
        """Whole lines, kept or not."""

    def touch(self, now: float) -> None:
        """Take note that it has printed something, perhaps no whole line."""
        self._read_at = now
        self.has_printed = True

    def quiet_for(self, now: float) -> float:
        """Return the seconds since it printed something."""
        return max(0.0, now - self._read_at)

    def add(self, lines: bytes) -> None:
        """Take whole lines, or the next piece of a long one."""
        self.lines += lines.count(b"\n")
        self._kept += lines[-2 * RECENT_BYTES :]
        self._begins_at += max(0, len(lines) - 2 * RECENT_BYTES)
        if len(self._kept) > 2 * RECENT_BYTES:
            end = self._kept.find(b"\n", len(self._kept) - RECENT_BYTES) + 1
            end = end or len(self._kept) - RECENT_BYTES
            del self._kept[:end]
            self._begins_at += end

    def read(self, after: int, most: int, text: bytes = b"") -> tuple[int, int, bytes]:
        """Return the position after the last line, how many bytes are left out, and the lines.

        Args:
            after: the position of what has been read already.
            most: the number of bytes, the last ones.
            text: only lines with it are returned.

        """
        end = self._begins_at + len(self._kept)
        start = min(max(after, self._begins_at), end)
        new = bytes(self._kept[start - self._begins_at :])
        if text:
            new = b"".join(line for line in new.splitlines(keepends=True) if text in line)
        kept = new
        if len(new) > most:
            kept = new[-most:]
            kept = kept[kept.find(b"\n") + 1 :] or kept
        # Who reads for the first time misses nothing.
        left_out = start - after + len(new) - len(kept) if 0 < after <= start else 0
        return end, left_out, kept

    def last_line(self) -> bytes:
        """Return the last whole line that is not blank, without its end."""
        lines = self._kept.rstrip()
        return bytes(lines[lines.rfind(b"\n") + 1 :])
