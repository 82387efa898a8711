"""Paddle's variables that can't be known."""

import pytest
from clusterrun.bounds import LocalRank
from clusterrun.errors import UsageError
from clusterrun.planning.variables import paddle_variables
from msgspec.structs import replace

from tests.plans import job, world


def test_nodes_with_different_numbers_of_workers() -> None:
    """A worker can't know the ports of the other workers."""
    two_nodes = replace(world(2), nodes=2, size=5)

    with pytest.raises(UsageError, match="2 nodes have 5 workers, but this one has 2"):
        paddle_variables(job(hosts=("a", "b")), two_nodes, LocalRank(0))
