"""Fixtures of the tests of rendezvous."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.network.nodes import Notices
from tests.network.threads import Nodes


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return what closes everything at the end."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def notices() -> Notices:
    """Return the notices that a node prints."""
    return Notices()


@pytest.fixture
def nodes(stack: ExitStack) -> Nodes:
    """Return nodes that leave at the end."""
    made = Nodes()
    stack.callback(made.close)
    return made
