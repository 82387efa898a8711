"""Hosts with and without ports."""

import pytest

from tests.job.door import (
    Endpoint,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node0", "node0", None),
        ("node0:29500", "node0", 29500),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("node0:0", "node0", 0),
        ("::1", "::1", None),
        ("fe80::1%eth0", "fe80::1%eth0", None),
        ("[::1]", "::1", None),
        ("[::1]:29500", "::1", 29500),
    ],
)
def test_forms(text: str, host: str, port: int | None) -> None:
    """Brackets part an IPv6 address from its port, and are no part of it."""
    assert Endpoint.parse(text) == Endpoint(host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "a:",
        "a:b",
        "a:-1",
        "a:65536",
        "a:1٣",
        "a b",
        "[::1",
        "[::1]1",
        "[]:1",
        "a/b",
        "a]",
    ],
)
def test_what_is_none(text: str) -> None:
    """The caller adds where the text was set."""
    with pytest.raises(ValueError):  # noqa: PT011 - the text is all there is to say
        Endpoint.parse(text)


@pytest.mark.parametrize("text", ["node0", "node0:29500", "::1", "[::1]:29500"])
def test_it_is_written_as_it_is_read(text: str) -> None:
    """People see what they typed."""
    assert str(Endpoint.parse(text)) == text
