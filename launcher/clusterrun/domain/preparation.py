"""Getting ready for workers before it is known who they are, and what came of it."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet


class Preparation(Struct, frozen=True):
    """What a fork server needs to make ready to run the workers' script in place."""

    command: tuple[str, ...]
    """What a worker would execute."""
    preload: str | tuple[str, ...]
    """``auto``, ``all``, ``none`` or modules."""
    insist: bool
    """A worker that can't run in place is not to be started at all."""
    settled: Mapping[str, str]
    """Variables that all workers get alike, and that are known by now."""
    workers: int
    """How many there are: one alone has nobody to share its imports with."""
    unsettled: tuple[str, ...]
    """Names of those that each worker gets its own, or that the other nodes decide."""
    cpus: CpuSet | None
    """Those of a worker: libraries count them when they are loaded. None: it is not bound."""
    patience: float
    """Seconds for which an import may stand still."""


class Prepared(Struct, frozen=True):
    """What came of it."""

    in_place: bool
    """Whether workers are forked and run the script in place; else they are executed."""
    why: str
    """Why they are executed; "" if they are not."""
    complaint: bool
    """Importing went wrong: the user should hear of it."""
    loaded: tuple[tuple[str, float], ...]
    """Modules that were imported, each with the seconds that this took."""
    left_out: tuple[tuple[str, str], ...]
    """Modules that are left to the workers, each with the reason."""
