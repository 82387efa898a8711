"""A value with its origin."""

from typing import Generic, TypeVar

from msgspec import Struct

ValueT_co = TypeVar("ValueT_co", covariant=True)


class Fact(Struct, Generic[ValueT_co], frozen=True):
    """A value and where it was set.

    ``origin`` is what a user would look for: ``--nnodes``, ``CLUSTERRUN_NNODES``,
    ``job.yaml:7 nnodes``, ``SLURM_STEP_NUM_NODES``, ``default``.
    """

    value: ValueT_co
    origin: str

    def __str__(self) -> str:
        """Return "VALUE (ORIGIN)" for messages."""
        return f"{self.value} ({self.origin})"
