"""Fixtures of the tests of rendezvous."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.network.nodes import Notices


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Return what closes everything at the end."""
    with ExitStack() as made:
        yield made


@pytest.fixture
def notices() -> Notices:
    """Return the notices that a node prints."""
    return Notices()
