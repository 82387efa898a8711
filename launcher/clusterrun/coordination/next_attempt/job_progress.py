"""What a job has gone through when its next attempt begins: counts, and whose places others take."""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from clusterrun.coordination.job_state import JobState
from clusterrun.coordination.next_attempt import bad_nodes
from clusterrun.domain.outcome import (
    MOST_REPLACEMENTS,
    NodeLost,
    Replacement,
    RestartProgress,
)


def count_losses(
    state: JobState, ranks: Mapping[int, int], left_out: Collection[int]
) -> RestartProgress:
    """Count the lost nodes, and return what all nodes report.

    Args:
        state: of the attempt that has ended.
        ranks: node ranks of the next attempt, by connection.
        left_out: members of the last attempt, not lost, that are not in the next one.

    """
    state.losses += len(state.lost)
    is_elastic = state.terms.reforming.is_elastic
    given_up = tuple(islice(_given_up(state, left_out), MOST_REPLACEMENTS))
    hosts = {}
    if given_up and not is_elastic:
        hosts = {rank: state.members.hellos[each].host for each, rank in ranks.items()}
    replacements = tuple(Replacement(node, hosts.get(node.node_rank, "")) for node in given_up)
    nodes = len(ranks) if is_elastic else 0
    return RestartProgress(state.restarts, state.losses, replacements, nodes)


def _given_up(state: JobState, left_out: Collection[int]) -> Iterator[NodeLost]:
    yield from state.lost.values()
    bad = bad_nodes.bad_members(state)
    yield from (bad_nodes.left_out(state, each) for each in left_out if each in bad)
