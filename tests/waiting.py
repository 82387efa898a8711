"""Waiting for what reports no event: a file, a state of a process, a terminal's foreground."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

SECONDS_TO_ACT = 60.0
"""The longest that a test waits for an event, on a very busy machine."""

Value = TypeVar("Value")


def wait_until(
    condition: Callable[[], Value | None],
    wanted: str = "the condition",
    seconds: float = SECONDS_TO_ACT,
) -> Value:
    """Return the first true value of ``condition``; fail if there is none within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not in time: {wanted}"
        time.sleep(0.005)
    return value


def text_of(file: Path, wanted: str, end: str = "") -> str:
    """Return the text of a file as soon as it has one that ends with ``end``."""

    def text() -> str:
        now = file.read_text() if file.exists() else ""
        return now if now.endswith(end) else ""

    return wait_until(text, wanted)
