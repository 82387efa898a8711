"""A terminal that takes no more, as after Ctrl-S, or a pipe that nobody reads."""

import os
from contextlib import suppress


def fill(path: str) -> None:
    """Print to a terminal or a pipe until its buffer is full."""
    with suppress(BlockingIOError), open(path, "wb", buffering=0, opener=_non_blocking) as terminal:
        while terminal.write(b"x" * 100):
            pass


def _non_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
