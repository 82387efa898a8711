"""How many of the nodes work: spares wait, and an elastic world has a multiple of some number."""

from collections.abc import Sequence

from clusterrun.domain.facts import Fact
from clusterrun.errors import UsageError
from clusterrun.job.sources import Layer, find, value_of
from clusterrun.sources.clusters.cluster import Place


def all_nodes(sources: Sequence[Layer]) -> Fact[int] | None:
    """Return how many nodes the options ask for, spares included; None: they do not say."""
    nnodes, spares = find("nnodes", sources), value_of("spares", sources)
    if nnodes is None:
        return None
    if spares.value == 0:
        return Fact(nnodes.value.most, nnodes.origin)
    if nnodes.value.fewest != nnodes.value.most:
        raise UsageError(
            f"nnodes is {nnodes}, and spares is {spares}: with spares, the number of"
            " nodes that work never changes",
            f"give --nnodes one number, or leave {spares.origin} out",
        )
    return Fact(nnodes.value.most + spares.value, f"{nnodes.origin} and {spares.origin}")


def fewest_nodes(sources: Sequence[Layer]) -> Fact[int] | None:
    """Return how many nodes are enough, MIN of ``--nnodes MIN:MAX``; None: the options do not say."""
    nnodes = find("nnodes", sources)
    return Fact(nnodes.value.fewest, nnodes.origin) if nnodes else None


def working_nodes(sources: Sequence[Layer], place: Place) -> Fact[int]:
    """Return how many of the nodes work; the others are spares."""
    spares, nnodes = value_of("spares", sources), place.nnodes
    if spares.value == 0:
        return nnodes
    if place.tasks.value is not None:
        raise UsageError(
            f"spares is {spares}, but each worker is a task of its own ({place.tasks.origin})",
            "start one task on each node:\n  srun --ntasks-per-node=1 clusterrun ...",
        )
    if spares.value >= nnodes.value:
        raise UsageError(
            f"spares is {spares}, but the job has {nnodes} node{'s' if nnodes.value > 1 else ''}",
            "give the number of nodes that work with --nnodes; spares come in addition",
        )
    origin = value_of("nnodes", sources, nnodes).origin
    return Fact(nnodes.value - spares.value, origin)


def elastic_minimum(sources: Sequence[Layer], fewest: Fact[int], nnodes: Fact[int]) -> Fact[int]:
    """Return the smallest multiple of ``--elastic-multiple`` that is not below MIN."""
    multiple = value_of("elastic_multiple", sources)
    rounded = -(-fewest.value // multiple.value) * multiple.value
    if rounded > nnodes.value:
        raise UsageError(
            f"elastic_multiple is {multiple}, but no multiple of it is from {fewest.value} to {nnodes}",
            "give --nnodes MIN:MAX with a multiple in between",
        )
    return Fact(rounded, fewest.origin)
