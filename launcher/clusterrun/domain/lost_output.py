"""What workers printed and nobody will ever read."""

from msgspec import Struct


class LostOutput(Struct, frozen=True):
    """So many bytes that were to be written to ``name`` and were not."""

    name: str
    """"log file /logs/7f3a/attempt-0/gpu-07-0/rank-3.out" or "standard output"."""
    size: int
    why: str
    """The error, "No space left on device"; "" if there was none, and not enough time."""
