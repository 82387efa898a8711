"""The fixture of all tests of the fork server."""

from collections.abc import Iterator

import pytest

from tests.workers.fork_server_bench import Bench, fork_server


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Return a fork server in the tests' own interpreter."""
    with fork_server() as bench:
        yield bench
