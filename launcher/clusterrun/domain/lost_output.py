"""Output of workers that could not be written."""

from msgspec import Struct


class LostOutput(Struct, frozen=True):
    """``size`` bytes that could not be written to ``name``."""

    name: str
    """"log file /logs/7f3a/attempt-0/gpu-07-0/rank-3.out" or "standard output"."""
    size: int
    why: str
    """The error, "No space left on device"; "" if only the time was too short."""
