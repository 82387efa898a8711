"""When a job with ``--nnodes MIN:MAX`` starts with fewer than MAX nodes."""

from msgspec import Struct


class LastCall(Struct, frozen=True):
    """The job starts with ``fewest`` nodes or more if the others do not join in time."""

    fewest: int
    patience: float
    """Seconds to wait for the others once ``fewest`` nodes have joined."""
