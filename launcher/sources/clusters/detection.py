"""Which cluster this process runs under: the first of an ordered list that shows itself."""

from collections.abc import Mapping
from typing import NamedTuple

from launcher.domain.facts import Fact
from launcher.errors import UsageError
from launcher.sources.clusters.cluster import Cluster, Place, Surroundings
from launcher.sources.suggestions import did_you_mean

NO_CLUSTER = "none"
"""What ``--cluster`` calls the absence of any."""


class Known(NamedTuple):
    """One entry of the list."""

    name: str
    """What ``--cluster`` calls it; entries may share one."""
    prefix: str
    """How variables of it begin; where there are none, nothing of it is even imported."""
    file: str
    """The file beside this one that holds it."""
    cluster: str
    """The class in there."""

    def load(self) -> Cluster:
        """Return the cluster."""
        from importlib import import_module  # noqa: PLC0415 - not on the way to most jobs

        found: Cluster = getattr(import_module(f"{__package__}.{self.file}"), self.cluster)()
        return found


DETECTION = (
    # srun started this very process, whatever else its environment has inherited.
    Known("slurm", "SLURM_", "slurm", "SlurmStep"),
    # Last, for it knows least: nothing in an allocation tells one process from another.
    Known("slurm", "SLURM_", "slurm_allocation", "SlurmAllocation"),
)
"""In the order of asking, each with the reason for its place."""


def detect(asked: Fact[str], around: Surroundings) -> tuple[Fact[str], Place | None]:
    """Return the name of the cluster, and this process's place as that tells it.

    Args:
        asked: ``--cluster``; its value is "" where that was not given.
        around: where to look.

    Raises:
        UsageError: the cluster asked for is unknown or shows no sign of itself, or one of its
            variables is no good.

    """
    if asked.value == NO_CLUSTER:
        return asked, None
    for known in DETECTION:
        if asked.value in {"", known.name} and _has_variables(known, around.variables):
            cluster = known.load()
            if sign := cluster.sign(around.variables):
                origin = asked.origin if asked.value else sign
                return Fact(known.name, origin), cluster.place(around)
    if asked.value:
        raise _not_here(asked)
    return Fact(NO_CLUSTER, "default"), None


def _has_variables(known: Known, environ: Mapping[str, str]) -> bool:
    return any(name.startswith(known.prefix) for name in environ)


def _not_here(asked: Fact[str]) -> UsageError:
    names = [*dict.fromkeys(known.name for known in DETECTION), NO_CLUSTER]
    if asked.value in names:
        return UsageError(
            f"{asked.origin}: no variable of {asked.value} is set here",
            f"pass its variables on to this process, or leave {asked.origin} out",
        )
    hint = did_you_mean(asked.value, names) or f"give one of {', '.join(names)}"
    return UsageError(f"{asked.origin}: {asked.value!r} is not a cluster that we know", hint)
