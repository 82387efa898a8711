"""When a job with ``--nnodes MIN:MAX`` starts with fewer than MAX nodes."""

from msgspec import Struct


class LastCall(Struct, frozen=True):
    """The job starts with ``minimum`` nodes or more if the others do not join in time."""

    minimum: int
    timeout: float
    """Seconds to wait for the others once ``minimum`` nodes have joined."""
