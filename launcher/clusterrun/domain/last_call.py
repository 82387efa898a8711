"""A job that begins without some of its nodes, where that is allowed: ``--nnodes MIN:MAX``."""

from msgspec import Struct


class LastCall(Struct, frozen=True):
    """When a job begins though not all nodes have come."""

    fewest: int
    """So many nodes are enough."""
    patience: float
    """Seconds for which the others are waited for once enough are there."""
