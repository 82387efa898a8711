"""What a fork server prepares before the other nodes have joined, and the result."""

from collections.abc import Mapping

from msgspec import Struct

from clusterrun.domain.cpuset import CpuSet


class Preparation(Struct, frozen=True):
    """What a fork server needs to get ready to run the workers' script in forked processes."""

    command: tuple[str, ...]
    """What a worker would execute."""
    preload: str | tuple[str, ...]
    """``auto``, ``none`` or modules."""
    must_fork: bool
    """A worker that can't be forked is not started at all."""
    known_variables: Mapping[str, str]
    """Variables that are equal for all workers, and known already."""
    later_variables: tuple[str, ...]
    """Names of the variables that differ per worker, or that the other nodes decide."""
    workers: int
    """Number of workers; a single one has no other to share its imports with."""
    cpus: CpuSet | None
    """The CPUs of a worker: libraries count them when they are loaded. None: it is not bound."""
    import_timeout: float
    """Seconds for which an import may make no progress."""
    most: tuple[int, str] | None = None
    """The first imports only, and why: the next one has used a variable that differs per worker."""


class Prepared(Struct, frozen=True):
    """The result, with the field names of the fork server's message."""

    in_place: bool
    """Whether workers are forked and run the script in place; else they are executed."""
    why: str
    """Why they are executed; "" if they are not."""
    complaint: bool
    """An import failed, which the user has to know."""
    costs_time: bool
    """Each worker imports by itself what could have been imported once."""
    spoiled: bool = False
    """Imports have begun, after which no worker is started from there."""
    again: int | None = None
    """The number of imports that another process may repeat; None: none."""
    loaded: tuple[tuple[str, float], ...] = ()
    """Imported modules, each with the seconds that the import took."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Modules that each worker imports itself, each with the reason."""
